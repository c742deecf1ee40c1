"""Heads: columns of each head, shared key/value heads, memories and projections."""

import pytest
import torch

from paribus import Heads, RootMeanSquare, Shape
from paribus.parts.heads import repeat_heads

SHAPE = Shape(width=6, heads=4, head_width=3, length=8, vocabulary=11, layers=1)


def test_a_head_is_a_contiguous_range_of_columns() -> None:
    heads = Heads(SHAPE, kv_heads=4, bias=True)
    x = torch.randn(2, 5, 6)
    q, columns = heads.queries(x), heads.q(x)
    assert q.shape == (2, 4, 5, 3)
    for batch in range(2):
        for head in range(4):
            for row in range(5):
                expected = columns[batch, row, 3 * head : 3 * head + 3]
                assert torch.equal(q[batch, head, row], expected)


def test_merging_undoes_splitting() -> None:
    heads = Heads(SHAPE, kv_heads=4, bias=False)
    columns = torch.randn(2, 5, 12)
    assert torch.equal(heads.merge(heads.split(columns, 4)), heads.o(columns))


@pytest.mark.parametrize("groups", [1, 2, 4])
def test_consecutive_query_heads_share_a_key_head(groups: int) -> None:
    heads = Heads(SHAPE, kv_heads=groups, bias=False)
    x = torch.randn(2, 5, 6)
    assert heads.keys(x).shape == heads.values(x).shape == (2, groups, 5, 3)
    repeated = repeat_heads(heads.keys(x), 4)
    for head in range(4):
        assert torch.equal(repeated[:, head], heads.keys(x)[:, head * groups // 4])


def test_repeat_heads_returns_unshared_heads_uncopied() -> None:
    x = torch.randn(2, 4, 5, 3)
    assert repeat_heads(x, 4) is x


def test_a_table_is_projected_as_queries_and_as_keys_of_all_heads() -> None:
    heads = Heads(SHAPE, kv_heads=2, bias=True)
    table = torch.randn(7, 6)
    queries, keys = heads.project(table)
    assert torch.equal(queries, heads.queries(table))
    assert torch.equal(keys, heads.keys(table).repeat_interleave(2, 0))
    assert queries.shape == keys.shape == (4, 7, 3)


def test_a_memory_may_have_its_own_width() -> None:
    shape = Shape(width=6, heads=4, head_width=3, length=8, vocabulary=11, layers=1, memory_width=10)
    heads = Heads(shape, kv_heads=2, bias=False)
    assert heads.queries(torch.randn(1, 5, 6)).shape == (1, 4, 5, 3)
    assert heads.keys(torch.randn(1, 7, 10)).shape == heads.values(torch.randn(1, 7, 10)).shape == (1, 2, 7, 3)


def test_all_projections_have_a_bias_or_none_has() -> None:
    with_bias, without = (dict(Heads(SHAPE, kv_heads=2, bias=bias).named_parameters()) for bias in (True, False))
    assert set(without) == {f"{name}.weight" for name in "qkvo"}
    assert set(with_bias) == set(without) | {f"{name}.bias" for name in "qkvo"}


@pytest.mark.parametrize("groups", [1, 2, 4])
def test_a_raw_memory_is_its_own_values_and_keeps_its_width(groups: int) -> None:
    shape = Shape(width=6, heads=4, head_width=3, length=8, vocabulary=11, layers=1, memory_width=8, raw_memory=True)
    heads = Heads(shape, kv_heads=groups, bias=True)
    assert {name.partition(".")[0] for name, _ in heads.named_parameters()} == {"q", "k"}
    memory = torch.randn(2, 5, 8)
    values = heads.values(memory)
    assert values.shape == (2, groups, 5, 8 // groups)
    assert torch.equal(heads.merge(repeat_heads(values, 4)), memory)


def test_the_width_of_a_raw_memory_is_divisible_by_its_heads() -> None:
    shape = Shape(width=6, heads=4, head_width=3, length=8, vocabulary=11, layers=1, memory_width=10, raw_memory=True)
    with pytest.raises(ValueError, match="divisible by 4 heads, got 10"):
        Heads(shape, kv_heads=4, bias=True)


@pytest.mark.parametrize("eps", [1e-6, 0.5])
def test_rms_norm_divides_by_the_root_mean_square(eps: float) -> None:
    norm, x = RootMeanSquare(4, eps).double(), torch.randn(2, 3, 4, dtype=torch.float64)
    with torch.no_grad():
        norm.weight.copy_(torch.tensor([1.0, -2.0, 0.5, 3.0]))
    expected = x / (x.square().mean(-1, keepdim=True) + eps).sqrt() * norm.weight
    assert torch.allclose(norm(x), expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_rms_norm_preserves_the_dtype_of_its_input(dtype: torch.dtype) -> None:
    assert RootMeanSquare(4)(torch.randn(2, 4, dtype=dtype)).dtype == dtype
