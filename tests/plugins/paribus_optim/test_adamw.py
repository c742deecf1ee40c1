"""AdamW, compared with its formula."""

import math

import pytest
import torch
from torch import Tensor, nn

from paribus import TrainedTensor
from paribus_optim.adamw import AdamW

LR, BETA1, BETA2, EPS, DECAY = 0.05, 0.8, 0.95, 1e-3, 0.3
GRADIENTS = (0.7, -1.5, 0.2, 0.0, 3.0)


def reference(value: float, decay: float) -> float:
    mean = square = 0.0
    for step, gradient in enumerate(GRADIENTS, start=1):
        mean = BETA1 * mean + (1 - BETA1) * gradient
        square = BETA2 * square + (1 - BETA2) * gradient**2
        value -= LR * decay * value
        value -= LR * (mean / (1 - BETA1**step)) / (math.sqrt(square / (1 - BETA2**step)) + EPS)
    return value


def take_steps(matrix: nn.Parameter, vector: nn.Parameter) -> None:
    component = AdamW(lr=LR, beta1=BETA1, beta2=BETA2, eps=EPS, weight_decay=DECAY)
    optimizer = component.build([TrainedTensor.of(matrix, "weight"), TrainedTensor.of(vector, "bias")])
    for gradient in GRADIENTS:
        for parameter in (matrix, vector):
            parameter.grad = torch.full_like(parameter, gradient)
        optimizer.step()


def test_matches_the_formula_and_only_matrices_decay() -> None:
    matrix = nn.Parameter(torch.full((2, 3), 2.0, dtype=torch.float64))
    vector = nn.Parameter(torch.full((3,), 2.0, dtype=torch.float64))
    take_steps(matrix, vector)
    assert matrix[1, 2].item() == pytest.approx(reference(2.0, DECAY), abs=1e-12)
    assert vector[2].item() == pytest.approx(reference(2.0, 0.0), abs=1e-12)


def test_two_runs_are_bitwise_equal_whatever_the_number_of_threads() -> None:
    def run(threads: int) -> list[Tensor]:
        torch.set_num_threads(threads)
        generator = torch.Generator().manual_seed(7)
        matrix = nn.Parameter(torch.randn(257, 129, generator=generator))
        vector = nn.Parameter(torch.randn(33, generator=generator))
        take_steps(matrix, vector)
        return [matrix.detach(), vector.detach()]

    runs = [run(threads) for threads in (1, 2, 1)]
    torch.set_num_threads(1)
    assert all(torch.equal(left, changed) for again in runs[1:] for left, changed in zip(runs[0], again, strict=True))
