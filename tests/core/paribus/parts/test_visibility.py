"""Visibility masks, compared with loops over every pair of tokens."""

import itertools

import pytest
import torch

from paribus import PADDING, BlockPattern, Context, TokenLayout, Visibility
from paribus.parts.visibility import visibility_mask, with_order

POSITIONS = torch.tensor([[0, 1, 2, 0, 1, 2], [4, 5, 6, 7, 9, 10]])
DOCUMENTS = torch.tensor([[0, 0, 0, 1, 1, 1], [PADDING, 3, 3, 3, 3, PADDING]])
ORDER = torch.tensor([[5, 3, 1, 0, 2, 4], [2, 2, 2, 3, 4, 5]])


@pytest.mark.covering
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("window", [None, 1, 2, 3])
@pytest.mark.parametrize("documents", [None, DOCUMENTS])
@pytest.mark.parametrize("order", [None, ORDER])
@pytest.mark.parametrize("by_row", [False, True])
def test_a_mask_equals_a_reference_in_loops(
    causal: bool, window: int | None, documents: torch.Tensor | None, order: torch.Tensor | None, by_row: bool
) -> None:
    rows = with_order(TokenLayout(POSITIONS, documents, order))
    mask = visibility_mask(Visibility(causal, window), rows, rows, window_by_index=by_row)
    if mask is None:
        assert not causal
        assert window is None
        assert documents is None
        return
    order_of = torch.arange(6).expand(2, -1) if order is None else order
    places_of = order_of if by_row else POSITIONS
    expected = torch.ones(2, 1, 6, 6, dtype=torch.bool)
    for b in range(2):
        for i in range(6):
            for j in range(6):
                sees = not causal or order_of[b, j] <= order_of[b, i]
                if window is not None:
                    sees = sees and abs(places_of[b, i] - places_of[b, j]) < window
                if documents is not None:
                    sees = sees and documents[b, i] == documents[b, j] and documents[b, j] >= 0
                expected[b, 0, i, j] = bool(sees)
    assert torch.equal(mask.expand(2, -1, -1, -1), expected)


def test_a_copy_is_seen_by_its_own_order_only_and_sees_earlier_tokens() -> None:
    order = torch.tensor([[0, 0, 1, 2, -1, -1, -2, -3]])  # blocks of text, and copies of these
    rows = TokenLayout(torch.arange(8)[None], order=order)
    mask = visibility_mask(Visibility(causal=True), rows, rows)
    assert mask is not None
    for i, query in enumerate(order[0].tolist()):
        for j, key in enumerate(order[0].tolist()):
            sees = key == query or (0 <= key < -1 - query if query < 0 else 0 <= key <= query)
            assert bool(mask[0, 0, i, j]) == sees


@pytest.mark.covering
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("dilation", [1, 2, 3])
@pytest.mark.parametrize("global_tokens", [0, 1, 3])
def test_a_dilated_window_with_global_tokens_equals_a_reference_in_loops(
    causal: bool, dilation: int, global_tokens: int
) -> None:
    positions = torch.arange(-2, 9)  # two tokens of padding first
    rows = with_order(TokenLayout(positions.unsqueeze(0)))
    mask = visibility_mask(Visibility(causal, 2, dilation, global_tokens), rows, rows)
    assert mask is not None
    for i, j in itertools.product(range(11), repeat=2):
        away = int(positions[i] - positions[j])
        near = away in (-dilation, 0, dilation)
        every = any(0 <= int(positions[row]) < global_tokens for row in (i, j))
        assert bool(mask[0, 0, i, j]) == ((near or every) and (not causal or away >= 0)), (i, j)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("near", [0, 1])
def test_blocks_see_their_neighbours_and_random_blocks(causal: bool, near: int) -> None:
    blocks = BlockPattern(2, near, ((3,), (), (0, 1), (3,)))
    rows = with_order(TokenLayout(torch.arange(9).unsqueeze(0)))  # one token more than the blocks cover
    mask = visibility_mask(Visibility(causal, blocks=blocks), rows, rows)
    assert mask is not None
    for i, j in itertools.product(range(8), repeat=2):
        is_random = j // 2 in blocks.random_blocks[i // 2]
        expected = (abs(i // 2 - j // 2) <= near or is_random) and (not causal or j <= i)
        assert bool(mask[0, 0, i, j]) == expected, (i, j)
    assert mask[0, 0, 8, 8]


def test_causality_follows_the_index_and_not_the_positions() -> None:
    rows = with_order(TokenLayout(torch.tensor([[0, 1, 0, 1]])))
    mask = visibility_mask(Visibility(causal=True), rows, rows)
    assert mask is not None
    assert torch.equal(mask[0, 0], torch.ones(4, 4, dtype=torch.bool).tril())


def test_the_order_continues_after_a_cache() -> None:
    q, k = (
        with_order(TokenLayout(torch.tensor([[0, 1]])), past=3),
        with_order(TokenLayout(torch.zeros(1, 5, dtype=torch.long))),
    )
    mask = visibility_mask(Visibility(causal=True), q, k)
    assert mask is not None
    assert mask[0, 0].tolist() == [[True, True, True, True, False], [True] * 5]


@pytest.mark.parametrize(
    ("queries", "keys", "past", "expected"),
    [
        (TokenLayout(torch.arange(2)[None]), TokenLayout(torch.arange(2)[None]), 0, [[1, 0], [1, 1]]),
        (TokenLayout(torch.tensor([[2]])), TokenLayout(torch.arange(3)[None]), 2, [[1, 1, 1]]),  # a step of decoding
    ],
)
def test_a_context_masks_keys(queries: TokenLayout, keys: TokenLayout, past: int, expected: list[list[int]]) -> None:
    mask = Context((), queries, keys, past=past).mask(Visibility(causal=True))
    assert mask is not None
    assert mask[0, 0].int().tolist() == expected


def test_a_context_with_an_order_masks_keys_of_a_later_order_except_in_cross_attention() -> None:
    layout = TokenLayout(torch.arange(3)[None], order=torch.tensor([[2, 0, 1]]))
    mask = Context((), layout, layout).mask(Visibility())
    assert mask is not None
    assert mask[0, 0].int().tolist() == [[1, 1, 1], [0, 1, 0], [0, 1, 1]]
    assert Context((), layout, layout, memory=torch.zeros(1, 3, 4)).mask(Visibility()) is None


def test_a_given_order_is_unchanged() -> None:
    rows = TokenLayout(POSITIONS, None, ORDER)
    assert with_order(rows) is rows


def test_tokens_without_documents_belong_to_document_0() -> None:
    memory = with_order(
        TokenLayout(torch.arange(3).unsqueeze(0), torch.tensor([[0, 0, PADDING], [0, PADDING, PADDING]]))
    )
    mask = visibility_mask(Visibility(), with_order(TokenLayout(torch.arange(2).unsqueeze(0))), memory)
    assert mask is not None
    assert mask[:, 0].tolist() == [[[True, True, False]] * 2, [[True, False, False]] * 2]


@pytest.mark.parametrize(
    ("sight", "keys", "span"),
    [
        (Visibility(), 100, 100),
        (Visibility(causal=True), 100, 100),
        (Visibility(causal=True, window=5), 100, 5),
        (Visibility(window=5), 100, 9),
        (Visibility(window=5), 4, 4),
        (Visibility(window=5, dilation=3), 100, 9),
        (Visibility(window=5, global_tokens=2), 100, 11),
        (Visibility(causal=True, blocks=BlockPattern(8, 1, ((), (0, 3), (), ()))), 100, 32),
        (Visibility(blocks=BlockPattern(8, 1, ((), (0, 3), (), ())), global_tokens=4), 100, 44),
    ],
)
def test_the_span_equals_the_keys_that_a_middle_query_sees(sight: Visibility, keys: int, span: int) -> None:
    assert sight.span(keys) == span
    rows = with_order(TokenLayout(torch.arange(keys).unsqueeze(0)))
    mask = visibility_mask(sight, rows, rows)
    if mask is not None and sight.window is not None:
        assert int(mask[0, 0, keys // 2].sum()) == span


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("global_tokens", [0, 2])
def test_the_number_of_pairs_is_summed_over_all_queries(causal: bool, global_tokens: int) -> None:
    sight = Visibility(causal, 3, 2, global_tokens)
    global_queries = 0 if causal else global_tokens
    assert sight.pairs(50, 50) == 50 * sight.span(50) + global_queries * (50 - sight.span(50))
    assert sight._replace(causal=True).pairs(1, 50) == 3 + global_tokens  # a step of decoding
    assert sight.pairs(1, 50) == (50 if global_queries else sight.span(50))


def test_random_blocks_have_a_table_and_a_mask() -> None:
    like = torch.empty(0)
    blocks = BlockPattern(4, 0, ((1, 2), (), (0,)))
    assert blocks.random_block_table(like).tolist() == [[1, 2], [-1, -1], [0, -1]]
    assert blocks.visible_blocks(like).int().tolist() == [[0, 1, 1], [0, 0, 0], [1, 0, 0]]
    nothing = BlockPattern(4, 1, ((), ()))
    assert nothing.max_random_blocks == 0
    assert nothing.random_block_table(like).shape == (2, 0)
    assert not nothing.visible_blocks(like).any()
