"""Adagrad, compared with its formula."""

import math
from collections.abc import Callable

from torch import Tensor

from paribus import Optimizer
from paribus_optim.adagrad import Adagrad

TakeSteps = Callable[[Optimizer], list[Tensor]]


def test_matches_the_formula(take_steps: TakeSteps, start: list[Tensor], gradients: list[list[Tensor]]) -> None:
    actual = take_steps(Adagrad(lr=0.3, initial=0.1, eps=1e-6))
    for place, value in enumerate(start):
        for i, initial in enumerate(value.flatten().tolist()):
            w, squares = initial, 0.1
            for step_gradients in gradients:
                gradient = step_gradients[place].flatten()[i].item()
                squares += gradient**2
                w -= 0.3 * gradient / (math.sqrt(squares) + 1e-6)
            assert abs(actual[place].flatten()[i].item() - w) < 1e-12
