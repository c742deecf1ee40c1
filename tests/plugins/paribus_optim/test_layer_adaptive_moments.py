"""LAMB, compared with its formula."""

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from paribus import Optimizer, TrainedTensor
from paribus_optim.layer_adaptive_moments import LayerAdaptiveMoments

LR, BETA1, BETA2, EPS, DECAY = 0.05, 0.8, 0.95, 1e-3, 0.3
TakeSteps = Callable[[Optimizer], list[Tensor]]


def reference(value: Tensor, gradients: Sequence[Tensor], *, adaptive: bool) -> list[float]:
    w, means, squares = value.flatten().tolist(), [0.0] * value.numel(), [0.0] * value.numel()
    for step, step_gradients in enumerate(gradients, start=1):
        update = []
        for i, gradient in enumerate(step_gradients.flatten().tolist()):
            means[i] = BETA1 * means[i] + (1 - BETA1) * gradient
            squares[i] = BETA2 * squares[i] + (1 - BETA2) * gradient**2
            direction = (means[i] / (1 - BETA1**step)) / (math.sqrt(squares[i] / (1 - BETA2**step)) + EPS)
            update.append(direction + (DECAY * w[i] if adaptive else 0.0))
        ratio = math.hypot(*w) / math.hypot(*update) if adaptive else 1.0
        w = [part - LR * ratio * difference for part, difference in zip(w, update, strict=True)]
    return w


def test_matrices_step_relative_to_their_norm_and_others_like_adam(
    take_steps: TakeSteps, start: list[Tensor], gradients: list[list[Tensor]]
) -> None:
    actual = take_steps(LayerAdaptiveMoments(lr=LR, beta1=BETA1, beta2=BETA2, eps=EPS, weight_decay=DECAY))
    for place, value in enumerate(start):
        expected = reference(value, [step_gradients[place] for step_gradients in gradients], adaptive=place < 2)
        torch.testing.assert_close(actual[place].flatten().tolist(), expected, rtol=0, atol=1e-12)


def test_step_length_does_not_depend_on_the_gradient_scale() -> None:
    for size in (1e-3, 1.0, 1e6):
        matrix = nn.Parameter(torch.full((2, 2), 3.0, dtype=torch.float64))
        matrix.grad = size * torch.tensor([[1.0, 2.0], [-1.0, 4.0]], dtype=torch.float64)
        original = matrix.detach().clone()
        LayerAdaptiveMoments(lr=0.01, weight_decay=0.0).build([TrainedTensor.of(matrix, "weight")]).step()
        assert torch.isclose((matrix - original).norm(), 0.01 * original.norm(), rtol=1e-9)


def test_zero_matrices_move_and_those_without_gradient_do_not() -> None:
    zeros, idle = (nn.Parameter(torch.zeros(2, 2, dtype=torch.float64)) for _ in range(2))
    zeros.grad = torch.ones_like(zeros)
    optimizer = LayerAdaptiveMoments(lr=0.01).build([TrainedTensor.of(each, "weight") for each in (zeros, idle)])
    assert optimizer.step(lambda: 2.5) == 2.5
    torch.testing.assert_close(zeros.detach(), torch.full_like(zeros, -0.01), rtol=1e-5, atol=0)
    assert not idle.any()
    idle.grad = torch.ones_like(idle)  # its moments start with its first gradient
    optimizer.step()
    torch.testing.assert_close(idle.detach(), torch.full_like(idle, -0.01), rtol=1e-5, atol=0)
