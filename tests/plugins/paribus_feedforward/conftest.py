"""Shape of the feed-forwards."""

import pytest

from paribus import Shape


@pytest.fixture
def shape() -> Shape:
    return Shape(width=6, heads=2, head_width=3, length=8, vocabulary=11, layers=2)
