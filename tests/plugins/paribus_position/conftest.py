"""A place that a position is built for."""

import pytest

from paribus import Shape


@pytest.fixture
def shape() -> Shape:
    return Shape(width=8, heads=4, head_width=6, length=16, vocabulary=11, layers=2)
