"""Padding and packing in whole models: neither padding nor other documents change the output."""

from collections.abc import Callable
from functools import partial

import pytest
import torch
from torch import Tensor

from paribus import PADDING, Stream
from paribus.models.lightning_module import Model

Hidden = Callable[..., Tensor]
ROWS = 9
TOKENS = torch.stack([torch.arange(15, 15 + ROWS), torch.arange(39, 39 - ROWS, -1)])
same = partial(torch.testing.assert_close, rtol=0, atol=1e-10)

LAYOUTS = {
    "right": [0] * ROWS + [PADDING] * 4,
    "left": [PADDING] * 4 + [0] * ROWS,
    "both sides": [PADDING] + [0] * ROWS + [PADDING] * 2,
    "holes": [0, 0, PADDING, 0, PADDING, PADDING, *[0] * 5, PADDING, 0],
}


def padded(tokens: Tensor, places: list[int], pad: int) -> tuple[Stream, Tensor]:
    """Return a stream with `tokens` at the positions that are not padding, and these positions."""
    documents = torch.tensor(places)
    (text_positions,) = (documents != PADDING).nonzero(as_tuple=True)
    spread = torch.full((len(tokens), len(places)), pad)
    spread[:, text_positions] = tokens
    positions = (documents != PADDING).cumsum(0) - 1  # padding is not counted
    return Stream(spread, documents.expand_as(spread), positions.expand_as(spread)), text_positions


@pytest.mark.covering(strength=1)
@pytest.mark.parametrize("places", LAYOUTS.values(), ids=LAYOUTS)
def test_padding_does_not_change_the_output(places: list[int], cell: Model, hidden: Hidden) -> None:
    expected = hidden(cell, Stream(TOKENS))
    for pad in (0, 39):
        stream, text_positions = padded(TOKENS, places, pad)
        same(hidden(cell, stream)[:, text_positions], expected)


def test_left_padding_may_have_negative_positions(cell: Model, hidden: Hidden) -> None:
    stream, text_positions = padded(TOKENS, LAYOUTS["left"], 0)
    ramp = torch.arange(-4, ROWS).expand_as(stream.tokens)
    same(hidden(cell, stream._replace(positions=ramp))[:, text_positions], hidden(cell, Stream(TOKENS)))


def test_an_example_of_padding_only_is_finite_and_changes_no_other(cell: Model, hidden: Hidden) -> None:
    documents = torch.zeros_like(TOKENS)
    documents[1] = PADDING
    output = hidden(cell, Stream(TOKENS, documents))
    assert output.isfinite().all()
    same(output[:1], hidden(cell, Stream(TOKENS[:1])))
    grads = torch.autograd.grad(output.square().sum(), list(cell.parameters()), allow_unused=True)
    assert all(grad.isfinite().all() for grad in grads if grad is not None)


def test_padding_has_no_gradient(cell: Model, hidden: Hidden) -> None:
    stream, text_positions = padded(TOKENS[:1], LAYOUTS["right"], 14)
    table = cell.get_parameter("embedding.tokens.weight")
    (grad,) = torch.autograd.grad(hidden(cell, stream)[:, text_positions].square().sum(), table)
    assert not grad[14].any()
    assert grad[TOKENS[0]].any(-1).all()


def test_packed_documents_equal_separate_documents(cell: Model, hidden: Hidden) -> None:
    sources = torch.tensor([[27, 28, 29], [31, 32, 33]])  # a target document reads its own source document
    expected = hidden(cell, Stream(TOKENS), Stream(sources))
    output = hidden(cell, packed(TOKENS), packed(sources))
    same(output.view_as(expected), expected)


def packed(tokens: Tensor) -> Stream:
    """Return the examples of a batch as the documents of one packed example."""
    count, length = tokens.shape
    documents, positions = torch.arange(count).repeat_interleave(length), torch.arange(length).repeat(count)
    return Stream(tokens.reshape(1, -1), documents.unsqueeze(0), positions.unsqueeze(0))


def test_a_source_may_be_padded(crossing: Model, hidden: Hidden) -> None:
    source = torch.stack([torch.arange(27, 27 + ROWS), torch.arange(20, 20 + ROWS)])
    expected = hidden(crossing, Stream(TOKENS), Stream(source))
    body = Stream(TOKENS, torch.zeros_like(TOKENS))
    for places in LAYOUTS.values():
        for pad in (0, 39):
            stream, _ = padded(source, places, pad)
            same(hidden(crossing, Stream(TOKENS), stream), expected)
            same(hidden(crossing, body, stream), expected)
