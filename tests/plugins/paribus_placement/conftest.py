"""Sublayers that can be reckoned with by hand."""

from collections.abc import Callable, Mapping

import pytest
from torch import Tensor

from paribus import Shape


@pytest.fixture
def shape() -> Shape:
    """A layer of a decoder that attends to an encoder: all three sublayers."""
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
    """Each another function, none of which commutes with the others."""
    return {
        "attention": lambda h: h.roll(1, -1) * 2,
        "cross": lambda h: h**2 - 1,
        "feedforward": lambda h: h.cumsum(-1) * 0.3,
    }
