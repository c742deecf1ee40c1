"""Forget gates: sums between tokens, in documents, in an order, and for queries that are no keys."""

import pytest
import torch
from torch import Tensor

from paribus import PADDING, ScoreOptions, Shape, TokenLayout, Visibility
from paribus.parts.attend import Attend
from paribus.parts.context import Context
from paribus.parts.forget_gates import ForgetGates, doubled_sums, running_sums, sums_in_order

RAMP = torch.arange(7).unsqueeze(0)
NONE = torch.zeros(2, 3, 0, dtype=torch.float64)
ORDER = torch.tensor([[3, 0, 6, 1, 5, 2, 4]])
DOCUMENTS = torch.tensor([[0, 0, 0, PADDING, 1, 1, 1]])
LAYOUTS = {
    "plain": TokenLayout(RAMP),
    "packed": TokenLayout(torch.tensor([[0, 1, 2, 3, 0, 1, 2]]), DOCUMENTS),
    "ordered": TokenLayout(RAMP, order=ORDER),
    "packed and ordered": TokenLayout(RAMP, DOCUMENTS, ORDER),
}


def gates(length: int) -> Tensor:
    draw = torch.Generator().manual_seed(0)
    return torch.randn(2, 3, length, dtype=torch.float64, generator=draw).sigmoid().log()


@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)
def test_differences_are_sums_of_the_tokens_between(layout: TokenLayout) -> None:
    values = gates(7)
    sums, _ = sums_in_order(values, NONE, layout, layout)
    order = (layout.positions if layout.order is None else layout.order)[0].tolist()
    documents = [0] * 7 if layout.documents is None else layout.documents[0].tolist()
    for i in range(7):
        for j in range(7):
            if documents[i] != documents[j] or documents[i] == PADDING:
                continue
            between = [t for t in range(7) if documents[t] == documents[i] and order[j] < order[t] <= order[i]]
            if order[j] <= order[i]:
                torch.testing.assert_close(sums[..., i] - sums[..., j], values[..., between].sum(-1))


def test_an_extra_query_has_its_own_gate_in_place_of_the_key_that_it_may_not_see() -> None:
    values, own = gates(7), gates(2)
    layout = TokenLayout(RAMP, order=ORDER)
    index = torch.tensor([[2, 4]])
    _, extra = sums_in_order(values, own, layout, layout.append_copies(index))
    changed = values.clone()
    changed[..., [2, 4]] = 0.0
    for query, key in enumerate(index[0].tolist()):
        earlier = ORDER[0] < ORDER[0, key]
        torch.testing.assert_close(extra[..., query], own[..., query] + values[..., earlier].sum(-1))


def test_keys_ahead_are_forgotten_like_keys_behind() -> None:
    module = ForgetGates(Shape(width=8, heads=3, head_width=4, length=16, vocabulary=11, layers=1)).double()
    x = torch.randn(2, 7, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    layout = TokenLayout(RAMP)
    bias = module(x, Context((), layout, layout))
    assert torch.equal(bias, bias.transpose(-1, -2))
    assert (bias.tril(-1) < 0).sum() == 2 * 3 * 21


@pytest.mark.parametrize("length", [1, 2, 7, 8])
def test_sums_by_doubling_are_running_sums(length: int) -> None:
    torch.testing.assert_close(doubled_sums(gates(length)), running_sums(gates(length)))


def test_a_query_of_another_stack_has_no_gate() -> None:
    crossing = Shape(width=8, heads=2, head_width=4, length=16, vocabulary=11, layers=1, memory_width=8)
    with pytest.raises(ValueError, match=r"parts\.decoder\.cross\.attention\.scores\.forget"):
        Attend(crossing, Visibility(), ScoreOptions(forget=True))
