"""SGD, compared with its formula."""

from collections.abc import Callable

import torch
from torch import Tensor

from paribus import Optimizer
from paribus_optim.stochastic_gradient_descent import StochasticGradientDescent

TakeSteps = Callable[[Optimizer], list[Tensor]]


def test_matches_the_formula_and_only_matrices_decay(
    take_steps: TakeSteps, start: list[Tensor], gradients: list[list[Tensor]]
) -> None:
    actual = take_steps(StochasticGradientDescent(lr=0.1, momentum=0.5, weight_decay=0.2))
    for place, value in enumerate(start):
        w, velocity = value, torch.zeros_like(value)
        for step_gradients in gradients:
            velocity = 0.5 * velocity + step_gradients[place] + (0.2 * w if place < 2 else 0.0)
            w = w - 0.1 * velocity
        torch.testing.assert_close(actual[place], w, rtol=0, atol=1e-12)
