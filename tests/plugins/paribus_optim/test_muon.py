"""Muon, compared with torch's, and the rules of a model's tensors."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import paribus
from paribus import Role, TrainedTensor
from paribus_optim.adamw import AdamW
from paribus_optim.mixed_rules import OtherTensors
from paribus_optim.muon import Muon

OPTIONS: dict[str, Any] = {"lr": 0.02, "momentum": 0.9, "weight_decay": 0.3}


def steps(component: paribus.Optimizer, role: Role, start: Tensor, count: int = 5) -> Tensor:
    """Return a tensor after some steps on random gradients."""
    parameter, generator = nn.Parameter(start.clone()), torch.Generator().manual_seed(1)
    optimizer = component.build([TrainedTensor.of(parameter, role)])
    for _ in range(count):
        parameter.grad = torch.randn(start.shape, generator=generator, dtype=start.dtype)
        optimizer.step()
    return parameter.detach()


@pytest.mark.skipif(not hasattr(torch.optim, "Muon"), reason="torch has Muon since 2.9")
@pytest.mark.parametrize("nesterov", [True, False])
@pytest.mark.parametrize("scale", ["match-rms", "original"])
@pytest.mark.parametrize("shape", [(6, 4), (8, 96)])
def test_steps_of_hidden_matrices_equal_those_of_torch(shape: tuple[int, int], scale: Any, nesterov: bool) -> None:
    start = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    name = {"match-rms": "match_rms_adamw", "original": "original"}[scale]
    parameter, generator = nn.Parameter(start.clone()), torch.Generator().manual_seed(1)
    optimizer = torch.optim.Muon([parameter], adjust_lr_fn=name, nesterov=nesterov, **OPTIONS)
    for _ in range(5):
        parameter.grad = torch.randn(shape, generator=generator)
        optimizer.step()
    assert torch.equal(steps(Muon(scale=scale, nesterov=nesterov, **OPTIONS), "query", start), parameter)


@pytest.mark.parametrize(
    ("role", "shape"), [("embedding", (7, 4)), ("head", (3, 4)), ("vector", (2, 4)), ("gain", (5,))]
)
def test_other_tensors_are_trained_by_adamw_at_their_own_rate(role: Role, shape: tuple[int, ...]) -> None:
    start = torch.randn(shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    mixed = Muon(adamw=OtherTensors(lr=0.1, beta1=0.8, beta2=0.9, weight_decay=0.2), **OPTIONS)
    expected = steps(AdamW(lr=0.1, beta1=0.8, beta2=0.9, weight_decay=0.2), role, start)
    torch.testing.assert_close(steps(mixed, role, start), expected, rtol=0, atol=1e-12)


def test_a_stack_of_matrices_is_trained_as_its_matrices() -> None:
    start = torch.randn(3, 6, 4, generator=torch.Generator().manual_seed(0))
    parameters = [nn.Parameter(start.clone()), *(nn.Parameter(matrix.clone()) for matrix in start)]
    optimizer = Muon(**OPTIONS).build([TrainedTensor.of(parameter, "inner") for parameter in parameters])
    for parameter, gradient in zip(parameters, [start.cos(), *start.cos()], strict=True):
        parameter.grad = gradient
    optimizer.step()
    torch.testing.assert_close(parameters[0], torch.stack([*parameters[1:]]), rtol=0, atol=1e-3)


def test_the_schedule_multiplies_the_rate_of_each_rule() -> None:
    options = ("optimizer={name: muon, lr: 0.02, adamw: {lr: 0.003}}", "trainer.max_steps=10", "schedule.warmup=0.5")
    model = paribus.assemble(paribus.spec("gpt-tiny", *options))
    configured: Any = model.configure_optimizers()
    rates = [group["lr"] for group in configured["optimizer"].param_groups]
    assert rates == pytest.approx([0.02 / 5, 0.003 / 5, 0.003 / 5])
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    _, tables, _ = ([names[id(each)] for each in group["params"]] for group in configured["optimizer"].param_groups)
    assert tables == ["embedding.tokens.weight", "body.position.0.table.weight"]


@pytest.mark.parametrize("component", [AdamW, Muon])
def test_cautious_decay_leaves_weights_that_grow(component: Any) -> None:
    start = torch.tensor([[2.0, 3.0], [-2.0, 0.0]], dtype=torch.float64)
    moved = [
        steps(component(lr=0.1, weight_decay=share, cautious_decay=True), "head", start, 1) for share in (0.0, 0.5)
    ]
    direction = start - moved[0]
    expected = torch.where(direction * start >= 0, 0.1 * 0.5 * start, 0.0)
    torch.testing.assert_close(moved[0] - moved[1], expected, rtol=0, atol=1e-12)
    assert expected.any()
    assert (direction * start < 0).any()
