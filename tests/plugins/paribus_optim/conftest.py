"""Parameters and their gradients, in float64."""

from collections.abc import Callable, Sequence

import pytest
import torch
from torch import Tensor, nn

from paribus import Optimizer, TrainedTensor

SHAPES = ((4, 3), (2, 5), (3,))  # two matrices and a vector
TakeSteps = Callable[[Optimizer], list[Tensor]]


@pytest.fixture
def start() -> list[Tensor]:
    """Return initial parameters; the vector is 0, like biases."""
    generator = torch.Generator().manual_seed(3)
    matrices = [torch.randn(shape, generator=generator, dtype=torch.float64) for shape in SHAPES[:2]]
    return [*matrices, torch.zeros(SHAPES[2], dtype=torch.float64)]


@pytest.fixture
def gradients() -> list[list[Tensor]]:
    """Return gradients of five steps; those of the fourth are large."""
    generator = torch.Generator().manual_seed(4)
    sizes = (1.0, 0.5, 0.1, 20.0, 1.0)
    return [[size * torch.randn(shape, generator=generator, dtype=torch.float64) for shape in SHAPES] for size in sizes]


@pytest.fixture
def take_steps(start: Sequence[Tensor], gradients: Sequence[Sequence[Tensor]]) -> TakeSteps:
    """Return the parameters after these steps of an optimizer."""

    def run(component: Optimizer) -> list[Tensor]:
        parameters = [nn.Parameter(value.clone()) for value in start]
        optimizer = component.build(
            [TrainedTensor.of(each, "weight" if each.ndim > 1 else "bias") for each in parameters]
        )
        for step_gradients in gradients:
            for parameter, gradient in zip(parameters, step_gradients, strict=True):
                parameter.grad = gradient.clone()
            optimizer.step()
        return [parameter.detach() for parameter in parameters]

    return run
