"""No normalisation."""

import torch

from paribus_norm.identity import Identity


def test_the_input_is_returned_and_there_are_no_parameters() -> None:
    norm = Identity(8)
    x = torch.randn(2, 8)
    assert norm(x) is x
    assert list(norm.parameters()) == []
