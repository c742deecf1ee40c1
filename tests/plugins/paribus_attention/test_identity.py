"""Identity in place of attention."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from paribus import Stack, TokenLayout

BuildStack = Callable[..., Stack]


@pytest.mark.parametrize("causal", [True, False], ids=["causal", "both"])
def test_the_input_is_returned_and_there_are_no_parameters(
    causal: bool, build_stack: BuildStack, randn: Callable[..., Tensor]
) -> None:
    stack, x = build_stack("identity", causal=causal), randn(2, 8, 12)
    assert stack(x, TokenLayout(torch.arange(8).unsqueeze(0))).hidden is x
    assert list(stack.parameters()) == []
