"""Properties of every optimizer of this plugin."""

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from paribus import Role, TrainedTensor
from paribus.models.states import fill_optimizer, pack_optimizer
from paribus_optim import optimizer

NAMES = sorted(optimizer())


def build_optimizer(name: str, model: nn.Module) -> torch.optim.Optimizer:
    tensors = [TrainedTensor.of(parameter, "weight") for parameter in model.parameters()]
    return optimizer()[name]().build(tensors)


def new_model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 4))


def train_steps(model: nn.Module, optimizer_instance: torch.optim.Optimizer, start: int, final: int) -> list[float]:
    losses = []
    for step in range(start, final):
        x = torch.randn(8, 6, generator=torch.Generator().manual_seed(step))
        loss = (model(x) - x[:, :4].sin()).square().mean()
        optimizer_instance.zero_grad()
        loss.backward()
        optimizer_instance.step()
        losses.append(float(loss.detach()))
    return losses


@pytest.mark.parametrize("name", NAMES)
def test_resuming_is_bitwise_equal(name: str) -> None:
    full_output = new_model()
    train_steps(full_output, build_optimizer(name, full_output), 0, 6)
    interrupted = new_model()
    first_optimizer = build_optimizer(name, interrupted)
    train_steps(interrupted, first_optimizer, 0, 3)
    tensors: dict[str, Tensor] = {}
    packed = pack_optimizer(first_optimizer, interrupted, tensors)
    resumed = new_model()
    resumed.load_state_dict(interrupted.state_dict())
    updated = build_optimizer(name, resumed)
    fill_optimizer(updated, resumed, packed, {key: value.clone() for key, value in tensors.items()}, Path("here"))
    train_steps(resumed, updated, 3, 6)
    assert all(
        torch.equal(left, changed) for left, changed in zip(full_output.parameters(), resumed.parameters(), strict=True)
    )


@pytest.mark.few(3)
@pytest.mark.parametrize("name", NAMES)
def test_any_group_of_parameters_may_be_empty(name: str) -> None:
    tensors: dict[Role, tuple[int, ...]] = {"weight": (2, 2), "embedding": (2, 2), "bias": (2,)}
    for role, shape in tensors.items():
        module = optimizer()[name]().build([TrainedTensor.of(nn.Parameter(torch.ones(shape)), role)])
        module.step()
        assert sum(len(group["params"]) for group in module.param_groups) == 1
