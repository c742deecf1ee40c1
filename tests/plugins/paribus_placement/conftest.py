"""Sublayers with simple closed forms."""

from collections.abc import Callable, Mapping

import pytest
import torch
from torch import Tensor

from paribus import Placement, Shape


@pytest.fixture
def shape() -> Shape:
    """Return the shape of a decoder layer with cross-attention: all three sublayers."""
    return Shape(
        width=8,
        heads=2,
        head_width=4,
        length=16,
        vocabulary=11,
        layers=2,
        sublayers=("attention", "cross", "feedforward"),
    )


@pytest.fixture
def sublayers() -> Mapping[str, Callable[[Tensor], Tensor]]:
    """Return different functions that do not commute."""
    return {
        "attention": lambda h: h.roll(1, -1) * 2,
        "cross": lambda h: h**2 - 1,
        "feedforward": lambda h: h.cumsum(-1) * 0.3,
    }


@pytest.fixture
def randomise() -> Callable[[Placement], Placement]:
    """Give every parameter of a placement different values, in float64."""

    def randomise_parameters(placement: Placement) -> Placement:
        for index, parameter in enumerate(placement.double().parameters()):
            parameter.data = torch.linspace(0.5, 1.5 + index, parameter.numel(), dtype=torch.float64)
        return placement

    return randomise_parameters


@pytest.fixture
def x() -> Tensor:
    return torch.randn(2, 3, 8, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
