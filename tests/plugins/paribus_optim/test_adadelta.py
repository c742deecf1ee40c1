"""Adadelta, compared with its formula and with torch."""

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from paribus import Optimizer
from paribus_optim.adadelta import Adadelta

RHO, EPS = 0.9, 1e-4
TakeSteps = Callable[[Optimizer], list[Tensor]]


def reference(value: Tensor, gradients: Sequence[Tensor]) -> list[float]:
    result = []
    for i, start in enumerate(value.flatten().tolist()):
        w, square, changed_positions_ = start, 0.0, 0.0
        for step_gradients in gradients:
            gradient = step_gradients.flatten()[i].item()
            square = RHO * square + (1 - RHO) * gradient**2
            step = math.sqrt(changed_positions_ + EPS) / math.sqrt(square + EPS) * gradient
            changed_positions_ = RHO * changed_positions_ + (1 - RHO) * step**2
            w -= step
        result.append(w)
    return result


def test_matches_the_formula(take_steps: TakeSteps, start: list[Tensor], gradients: list[list[Tensor]]) -> None:
    actual = take_steps(Adadelta(rho=RHO, eps=EPS))
    for place, value in enumerate(start):
        expected = reference(value, [step_gradients[place] for step_gradients in gradients])
        torch.testing.assert_close(actual[place].flatten().tolist(), expected, rtol=0, atol=1e-12)


def test_matches_torch(take_steps: TakeSteps, start: list[Tensor], gradients: list[list[Tensor]]) -> None:
    parameters = [nn.Parameter(value.clone()) for value in start]
    peer = torch.optim.Adadelta(parameters, lr=1.0, rho=RHO, eps=EPS, foreach=False)
    for step_gradients in gradients:
        for parameter, gradient in zip(parameters, step_gradients, strict=True):
            parameter.grad = gradient.clone()
        peer.step()
    for left, changed in zip(take_steps(Adadelta(rho=RHO, eps=EPS)), parameters, strict=True):
        torch.testing.assert_close(left, changed.detach(), rtol=0, atol=1e-12)
