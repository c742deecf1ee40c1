"""Properties of every optimizer of this plugin."""

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from paribus.train.states import fill_optimizer, pack_optimizer
from paribus_optim import optimizer

NAMES = sorted(optimizer())


def built(name: str, model: nn.Module) -> torch.optim.Optimizer:
    matrices = [parameter for parameter in model.parameters() if parameter.ndim >= 2]
    return optimizer()[name]().build(matrices, [parameter for parameter in model.parameters() if parameter.ndim < 2])


def fresh() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 4))


def steps(model: nn.Module, stepping: torch.optim.Optimizer, start: int, final: int) -> list[float]:
    losses = []
    for step in range(start, final):
        x = torch.randn(8, 6, generator=torch.Generator().manual_seed(step))
        loss = (model(x) - x[:, :4].sin()).square().mean()
        stepping.zero_grad()
        loss.backward()
        stepping.step()
        losses.append(float(loss.detach()))
    return losses


@pytest.mark.parametrize("name", NAMES)
def test_resuming_is_bitwise_equal(name: str) -> None:
    full_output = fresh()
    steps(full_output, built(name, full_output), 0, 6)
    interrupted = fresh()
    first_optimizer = built(name, interrupted)
    steps(interrupted, first_optimizer, 0, 3)
    tensors: dict[str, Tensor] = {}
    packed = pack_optimizer(first_optimizer, interrupted, tensors)
    resumed = fresh()
    resumed.load_state_dict(interrupted.state_dict())
    updated = built(name, resumed)
    fill_optimizer(updated, resumed, packed, {key: value.clone() for key, value in tensors.items()}, Path("here"))
    steps(resumed, updated, 3, 6)
    assert all(
        torch.equal(left, changed) for left, changed in zip(full_output.parameters(), resumed.parameters(), strict=True)
    )


@pytest.mark.parametrize("name", NAMES)
def test_every_optimizer_reduces_the_loss(name: str) -> None:
    model = fresh()
    losses = steps(model, built(name, model), 0, 300)
    assert sum(losses[-20:]) < 0.9 * sum(losses[:20])


@pytest.mark.parametrize("name", NAMES)
def test_either_group_of_parameters_may_be_empty(name: str) -> None:
    for count in ((1, 0), (0, 1)):
        sides = ([nn.Parameter(torch.ones(2, 2))] * count[0], [nn.Parameter(torch.ones(2))] * count[1])
        module = optimizer()[name]().build(*sides)
        module.step()
        assert [len(group["params"]) for group in module.param_groups] == list(count)
