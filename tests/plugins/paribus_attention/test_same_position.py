"""Cross-attention to the token at the same position."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.fixtures.problems import raises_problem
from torch import Tensor

from paribus import PADDING, Memory, SpecError, Stack, TokenLayout, installed
from paribus.specs import resolved

BuildStack = Callable[..., Stack]
Randn = Callable[..., Tensor]


def ramp(length: int, start: int = 0) -> TokenLayout:
    return TokenLayout(torch.arange(start, start + length).unsqueeze(0))


@pytest.fixture
def stack(build_cross: Callable[[], Stack]) -> Stack:
    return build_cross()


@pytest.fixture
def build_cross(build_stack: BuildStack) -> Callable[[], Stack]:
    """A stack whose self-attention is `identity`, for an attention that has only cross-attention."""

    def build() -> Stack:
        built: Any = build_stack("identity")
        cross: Any = build_stack("same-position", memory_width=10).layers[0].cross
        built.layers[0].cross, built.layers[0].crosses = cross, True
        return built  # type: ignore[no-any-return]  # a Stack

    return build


def test_a_token_reads_a_map_of_the_memory_at_its_position(stack: Any, randn: Randn) -> None:
    x, hidden = randn(2, 6, 12), randn(2, 4, 10, seed=1)
    outer = stack.layers[0].cross.outer
    actual = stack(x, ramp(6), Memory(hidden, ramp(4))).hidden
    read = torch.cat([hidden, torch.zeros(2, 2, 10, dtype=torch.float64)], dim=1)
    expected = x @ outer.weight[:, :12].T + read @ outer.weight[:, 12:].T + outer.bias
    assert torch.allclose(actual, expected, rtol=0, atol=1e-12)


def test_documents_count_their_own_positions(stack: Any, randn: Randn) -> None:
    x, hidden = randn(1, 6, 12), randn(1, 5, 10, seed=1)
    own = TokenLayout(torch.tensor([[0, 1, 2, 0, 1, 2]]), torch.tensor([[0, 0, 0, 1, 1, PADDING]]))
    other = TokenLayout(torch.tensor([[0, 1, 0, 1, 2]]), torch.tensor([[0, 0, 1, PADDING, 1]]))
    actual = stack(x, own, Memory(hidden, other)).hidden[0]
    for query, key in enumerate((0, 1, None, 2, None)):
        read = torch.zeros_like(hidden[0, 0]) if key is None else hidden[0, key]
        expected = stack.layers[0].cross.outer(torch.cat([x[0, query], read]))
        assert torch.allclose(actual[query], expected, rtol=0, atol=1e-12)


def test_decoding_continues_at_the_position_of_the_state(stack: Any, randn: Randn) -> None:
    x, memory = randn(2, 6, 12), Memory(randn(2, 4, 10, seed=1), ramp(4))
    states = stack.start(2, 6)
    steps = [stack(x[:, past : past + 2], ramp(2, past), memory, states).hidden for past in range(0, 6, 2)]
    assert torch.equal(torch.cat(steps, dim=1), stack(x, ramp(6), memory).hidden)


def test_it_is_rejected_in_self_attention() -> None:
    registry = installed(no_plugins=True)
    with raises_problem(SpecError, "does-not-fit", "same-position"):
        resolved("gpt-tiny", "attention=same-position", "position=none", registry=registry)
    with raises_problem(SpecError, "does-not-fit", "same-position"):
        resolved("encoder-tiny", "attention=same-position", "position=none", registry=registry)
