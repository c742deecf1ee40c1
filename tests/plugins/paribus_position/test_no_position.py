"""No position: every method is the identity."""

import torch

from paribus import Shape
from paribus_position.no_position import NoPosition


def test_it_changes_nothing_and_has_no_parameters(shape: Shape) -> None:
    position, x, positions = NoPosition(shape), torch.randn(1, 2, 3, 6), torch.arange(3).unsqueeze(0)
    assert position.embed(x, positions) is x
    assert position.rotate(x, position.tables(positions, 6), "query") is x
    assert list(position.parameters()) == []
    assert position.position_limit() is None
