"""No normalisation at all."""

import torch

from paribus_norm.identity import Identity


def test_rows_stay_as_they_are_and_nothing_is_learned() -> None:
    norm = Identity(8)
    x = torch.randn(2, 8)
    assert norm(x) is x
    assert list(norm.parameters()) == []
