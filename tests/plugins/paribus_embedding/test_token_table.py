"""Token embedding: order of sums, tying, gradients."""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from paribus import Load, Shape, Stream, TokenLayout
from paribus_embedding.token_table import TokenTable
from paribus_norm.layer_norm import LayerNorm

TOKENS = torch.tensor([[3, 1, 4], [1, 5, 0]])
SEGMENTS = torch.tensor([[0, 1, 1], [0, 0, 1]])


def table(*, dropout: float = 0.0, **options: Any) -> TokenTable:
    shape = Shape(width=6, heads=2, head_width=3, length=8, vocabulary=11, layers=2, dropout=dropout)
    return TokenTable(shape, norm, **options).double()


def norm(width: int | None = None) -> LayerNorm:
    return LayerNorm(width or 6).double()


def stack_part(embedding: TokenTable) -> nn.ModuleDict | None:
    return embedding.stack_part(Shape(width=6, heads=2, head_width=3, length=8, vocabulary=11, layers=2), norm)


def without_positions(x: Tensor, positions: Tensor) -> Tensor:
    return x


def embed(
    embedding: TokenTable, stream: Stream, place: Callable[[Tensor, Tensor], Tensor] = without_positions
) -> Tensor:
    x: Tensor = embedding(stream, 0, place, stack_part(embedding))[0]
    return x


def test_an_embedding_is_the_vector_of_its_token() -> None:
    embedding = table()
    x = embed(embedding, Stream(TOKENS))
    for b in range(2):
        for t in range(3):
            assert torch.equal(x[b, t], embedding.tokens.weight[int(TOKENS[b, t])])


def test_scale_applies_to_tokens_only() -> None:
    embedding = table(scale=True, segments=2)
    expected = embedding.tokens.weight[TOKENS] * math.sqrt(6) + embedding.segments.weight[SEGMENTS]  # type: ignore[union-attr]  # it was asked for
    torch.testing.assert_close(embed(embedding, Stream(TOKENS, segments=SEGMENTS)), expected)


def test_tokens_without_a_language_have_the_first() -> None:
    embedding = table(scale=True, languages=3)
    given = torch.tensor([[0, 2, 1], [2, 2, 0]])
    x = embedding.tokens.weight[TOKENS] * math.sqrt(6)
    for languages, expected_languages in ((given, given), (None, torch.zeros_like(TOKENS))):
        expected = x + embedding.languages.weight[expected_languages]  # type: ignore[union-attr]  # it was asked for
        torch.testing.assert_close(embed(embedding, Stream(TOKENS, languages=languages)), expected)
    embed(embedding, Stream(TOKENS)).sum().backward()
    assert embedding.languages.weight.grad is not None  # type: ignore[union-attr]  # as above


def test_streams_without_segments_use_segment_0() -> None:
    embedding = table(segments=2)
    without = embed(embedding, Stream(TOKENS))
    assert torch.equal(without, embed(embedding, Stream(TOKENS, segments=torch.zeros_like(TOKENS))))
    without.sum().backward()
    assert all(parameter.grad is not None for parameter in embedding.parameters())


def test_the_order_is_segments_positions_norm() -> None:
    embedding = table(segments=2, normed=True, scale=True)

    def place(x: Tensor, positions: Tensor) -> Tensor:
        return x * 2 + positions.unsqueeze(-1) * torch.arange(6)

    x = embedding.tokens.weight[TOKENS] * math.sqrt(6) + embedding.segments.weight[SEGMENTS]  # type: ignore[union-attr]  # it was asked for
    expected = LayerNorm(6).double()(place(x, torch.arange(3).unsqueeze(0)))
    torch.testing.assert_close(embed(embedding, Stream(TOKENS, segments=SEGMENTS), place), expected)


def test_dropout_is_last_and_in_training_only() -> None:
    embedding = table(dropout=0.5, normed=True)
    still = embed(embedding.eval(), Stream(TOKENS))
    dropped = embed(embedding.train(), Stream(TOKENS))
    not_dropped = dropped != 0
    assert 0 < int(not_dropped.sum()) < not_dropped.numel()
    torch.testing.assert_close(dropped[not_dropped], still[not_dropped] * 2)


@pytest.mark.parametrize(
    ("stream", "past", "expected"),
    [
        (Stream(TOKENS), 0, [[0, 1, 2]]),
        (Stream(TOKENS), 5, [[5, 6, 7]]),
        (Stream(TOKENS, positions=torch.tensor([[0, 0, 1], [7, 8, 9]])), 5, [[0, 0, 1], [7, 8, 9]]),
    ],
)
def test_positions_continue_from_the_past_unless_given(stream: Stream, past: int, expected: list[list[int]]) -> None:
    placed: list[Tensor] = []

    def place(x: Tensor, positions: Tensor) -> Tensor:
        placed.append(positions)
        return x

    _, rows = table()(stream, past, place, None)
    assert isinstance(rows, TokenLayout)
    assert rows.positions.tolist() == placed[0].tolist() == expected


def test_the_layout_of_the_stream_is_returned() -> None:
    stream = Stream(TOKENS, documents=torch.zeros_like(TOKENS), order=torch.ones_like(TOKENS))
    _, positions = table()(stream, 0, without_positions, None)
    assert positions.documents is stream.documents
    assert positions.order is stream.order


@torch.no_grad()
def test_a_soft_cap_limits_scores_before_the_bias() -> None:
    embedding, h, bias = table(soft_cap=3.0), 4 * torch.randn(2, 6).double(), torch.randn(11).double()
    capped = [[3 * math.tanh(float(row @ vector) / 3) for vector in embedding.tokens.weight] for row in h]
    expected = torch.tensor(capped, dtype=torch.float64)
    torch.testing.assert_close(embedding.unembed(h), expected, rtol=0, atol=1e-12)
    torch.testing.assert_close(embedding.unembed(h, bias), expected + bias, rtol=0, atol=1e-12)


def test_a_tied_table_scores_tokens() -> None:
    embedding = table()
    h = torch.randn(2, 6, dtype=torch.float64)
    torch.testing.assert_close(embedding.unembed(h), h @ embedding.tokens.weight.T)
    assert {name for name, _ in embedding.named_parameters()} == {"tokens.weight"}


def test_a_tied_table_gets_gradients_from_both_uses() -> None:
    embedding = table()
    (looked_up,) = torch.autograd.grad(embed(embedding, Stream(TOKENS)).sum(), embedding.tokens.weight)
    h = torch.randn(2, 6, dtype=torch.float64)
    (scored,) = torch.autograd.grad(embedding.unembed(h).sum(), embedding.tokens.weight)
    (embed(embedding, Stream(TOKENS)).sum() + embedding.unembed(h).sum()).backward()
    torch.testing.assert_close(embedding.tokens.weight.grad, looked_up + scored)


def test_an_untied_table_has_a_head() -> None:
    embedding = table(tie=False)
    h = torch.randn(2, 6, dtype=torch.float64)
    torch.testing.assert_close(embedding.unembed(h), h @ embedding.head.weight.T)  # type: ignore[union-attr]  # it was asked for
    assert {name for name, _ in embedding.named_parameters()} == {"tokens.weight", "head.weight"}


def test_only_used_tokens_have_a_gradient_padding_included() -> None:
    embedding = table(tie=False)
    embed(embedding, Stream(TOKENS)).pow(2).sum().backward()
    assert embedding.tokens.weight.grad is not None
    touched = embedding.tokens.weight.grad.abs().sum(-1) > 0
    assert touched.nonzero().flatten().tolist() == [0, 1, 3, 4, 5]


@pytest.mark.parametrize("tie", [True, False])
def test_cost_matches_the_torch_flop_counter(tie: bool) -> None:
    embedding = table(tie=tie).to("meta")
    with FlopCounterMode(display=False) as counter:
        embedding.unembed(torch.empty(4, 6, device="meta", dtype=torch.float64))
        embed(embedding, Stream(TOKENS.to("meta")))
    assert (
        embedding.cost(Load(queries=8, keys=8, head_positions=4)).flops == counter.get_total_flops() == 2 * 4 * 6 * 11
    )


def test_every_matrix_has_a_role() -> None:
    matrices = {
        name for name, parameter in table(segments=2, languages=3, tie=False).named_parameters() if parameter.ndim == 2
    }
    assert matrices == TokenTable.roles.keys()
