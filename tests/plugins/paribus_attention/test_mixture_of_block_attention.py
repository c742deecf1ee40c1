"""Mixture of block attention: which blocks each query reads, and equality with full attention."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from paribus import PADDING, Context, Load, Shape, Stack, TokenLayout
from paribus_attention import attention
from paribus_attention.mixture_of_block_attention import blocks_of, choose

BuildStack = Callable[..., Stack]
Randn = Callable[..., Tensor]
RAMP = torch.arange(9).unsqueeze(0)
PLAIN = TokenLayout(RAMP, index_positions=RAMP)
PACKED = TokenLayout(RAMP % 5, torch.tensor([[0] * 5 + [1] * 4, [0] * 5 + [1] * 2 + [PADDING] * 2]))


def reads(q: Tensor, k: Tensor, layout: TokenLayout, *, size: int, top: int, causal: bool = True) -> list[list[int]]:
    """Return the keys that each query of one head reads and sees: (T, K), (S, K)."""
    ctx = Context((), layout, layout)
    is_read = choose(q[None, None], k[None, None], blocks_of(ctx, causal, size), top)[0, 0]
    visible = torch.ones_like(is_read).tril() if causal else torch.ones_like(is_read)
    return [row.nonzero().flatten().tolist() for row in is_read & visible]


def test_a_query_reads_its_own_block_and_those_with_the_best_means() -> None:
    keys = torch.tensor([[0.0, 1.0], [0.0, 1.0], [5.0, 0.0], [-5.0, 0.0], [1.0, 0.0], [1.0, 0.0], [9.0, 9.0]])
    queries = torch.tensor([[1.0, 0.0]] * 6 + [[1.0, 0.5]])
    layout = PLAIN.span(0, 7)
    # The means of the first three blocks are (0, 1), (0, 0) and (1, 0): one key of a block does not decide.
    assert reads(queries, keys, layout, size=2, top=1)[6] == [4, 5, 6]
    assert reads(queries, keys, layout, size=2, top=2)[6] == [0, 1, 4, 5, 6]
    assert reads(queries, keys, layout, size=2, top=9)[6] == list(range(7))
    assert reads(queries, keys, layout, size=2, top=1)[0] == [0]
    assert reads(queries, keys, layout, size=2, top=1, causal=False)[0] == [0, 1, 6]  # a short block's mean is its own


def test_blocks_start_with_each_document_and_leave_padding_out(randn: Randn) -> None:
    stack_layout, q, k = PACKED, randn(2, 1, 9, 4), randn(2, 1, 9, 4, seed=1)
    blocks = blocks_of(Context((), stack_layout, stack_layout), True, 2)
    together = choose(q, k, blocks, 1)
    for row, start, stop in ((0, 0, 5), (0, 5, 9), (1, 0, 5), (1, 5, 7)):
        span = slice(start, stop)
        alone = reads(q[row, 0, span], k[row, 0, span], PLAIN.span(0, stop - start), size=2, top=1)
        visible = together[row, 0, span, span].tril()
        assert [keys.nonzero().flatten().tolist() for keys in visible] == alone
        others = together[row, 0, span].clone()
        others[:, span] = False
        assert not others.any()


@pytest.mark.parametrize("causal", [True, False], ids=["causal", "both"])
@pytest.mark.parametrize("options", [{"block_size": 9, "top": 1}, {"block_size": 2, "top": 4}], ids=["one", "all"])
def test_all_blocks_are_full_attention(
    causal: bool, options: dict[str, int], build_stack: BuildStack, randn: Randn
) -> None:
    x = randn(2, 9, 12)
    for layout in (TokenLayout(RAMP), PACKED):
        expected = build_stack("mha", "rope", causal=causal)(x, layout).hidden
        actual = build_stack("moba", "rope", causal=causal, **options)(x, layout).hidden
        assert torch.allclose(actual, expected, rtol=0, atol=1e-12)


def test_it_has_the_parameters_of_multi_head_attention_and_fewer_scores() -> None:
    shape = Shape(12, 4, 4, 64, 11, 1)
    full, chosen = attention()["mha"](shape), attention()["moba"](shape, block_size=8, top=1)
    names = [{name: tuple(tensor.shape) for name, tensor in part.named_parameters()} for part in (full, chosen)]
    assert names[0] == names[1]
    saved = full.cost(Load(64, 64)).flops - chosen.cost(Load(64, 64)).flops
    assert saved == 4 * 64 * (64 - 16) * 16 - 2 * 64 * 8 * 16  # scores of 16 of 64 keys, and of 8 means; H K = 16
