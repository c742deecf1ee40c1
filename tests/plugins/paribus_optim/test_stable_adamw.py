"""StableAdamW, compared with its formula."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from paribus import Optimizer
from paribus_optim.adamw import AdamW
from paribus_optim.stable_adamw import StableAdamW

LR, BETA1, BETA2, EPS, DECAY = 0.05, 0.8, 0.95, 1e-3, 0.3
TakeSteps = Callable[[Optimizer], list[Tensor]]


def reference(value: Tensor, gradients: Sequence[Tensor], decay: float) -> list[float]:
    w, means, squares = value.flatten().tolist(), [0.0] * value.numel(), [0.0] * value.numel()
    for step, step_gradients in enumerate(gradients, start=1):
        update, ratio = [], 0.0
        for i, gradient in enumerate(step_gradients.flatten().tolist()):
            means[i] = BETA1 * means[i] + (1 - BETA1) * gradient
            squares[i] = BETA2 * squares[i] + (1 - BETA2) * gradient**2
            unbiased = squares[i] / (1 - BETA2**step)
            ratio += gradient**2 / max(unbiased, EPS**2) / value.numel()
            update.append((means[i] / (1 - BETA1**step)) / (math.sqrt(unbiased) + EPS) + decay * w[i])
        rate = LR / max(1.0, math.sqrt(ratio))
        w = [part - rate * difference for part, difference in zip(w, update, strict=True)]
    return w


def test_matches_the_formula_and_only_matrices_decay(
    take_steps: TakeSteps, start: list[Tensor], gradients: list[list[Tensor]]
) -> None:
    actual = take_steps(StableAdamW(lr=LR, beta1=BETA1, beta2=BETA2, eps=EPS, weight_decay=DECAY))
    for place, value in enumerate(start):
        expected = reference(
            value, [step_gradients[place] for step_gradients in gradients], DECAY if place < 2 else 0.0
        )
        torch.testing.assert_close(actual[place].flatten().tolist(), expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("surprising", [False, True])
def test_it_is_adamw_for_gradients_that_do_not_grow(
    surprising: bool, take_steps: TakeSteps, gradients: list[list[Tensor]]
) -> None:
    if not surprising:
        for place, step_gradients in enumerate(gradients):
            for gradient in step_gradients:
                gradient.copy_(torch.full_like(gradient, 0.5**place))
    options: dict[str, Any] = {"lr": LR, "beta1": BETA1, "beta2": BETA2, "eps": 1e-12, "weight_decay": DECAY}
    pairs = zip(take_steps(StableAdamW(**options)), take_steps(AdamW(**options)), strict=True)
    same = [torch.allclose(left, changed, rtol=0, atol=1e-12) for left, changed in pairs]
    assert same == [not surprising] * 3
