"""Kernel `eager`, compared with loops over single numbers and with torch."""

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from paribus import TokenLayout, Visibility
from paribus.kernels.eager import Eager
from paribus.parts.attend import attention_weights
from paribus.parts.context import AttentionPlan, KernelRequest, LayerScoring, Pair

Planned = Callable[..., AttentionPlan]
Kinds = Callable[[str, int], TokenLayout]
EAGER = Eager()
SCALE = 0.7  # scale of the plans


def random_heads(length: int, groups: int, width: int = 3) -> tuple[Tensor, Tensor, Tensor]:
    draw = torch.Generator().manual_seed(1)
    q, k, v = (
        torch.randn(2, heads, length, width, generator=draw, dtype=torch.float64) for heads in (4, groups, groups)
    )
    return q, k, v


def sees(visibility: Visibility, rows: TokenLayout, batch: int, i: int, j: int) -> bool:
    """Return whether token i sees token j; a second implementation, without tensors."""
    row = min(batch, rows.positions.shape[0] - 1)
    position = rows.positions[row].tolist()
    order = rows.order[row].tolist() if rows.order is not None else list(range(len(position)))
    place = position if rows.documents is not None or rows.order is not None else list(range(len(position)))
    if visibility.causal and order[j] > order[i]:
        return False
    if visibility.window is not None and abs(place[i] - place[j]) >= visibility.window:
        return False
    return rows.documents is None or bool(rows.documents[row, i] == rows.documents[row, j] >= 0)


def reference_attention(
    q: Tensor, k: Tensor, v: Tensor, sight: Visibility, rows: TokenLayout, cap: float | None = None
) -> Tensor:
    out = torch.zeros(*q.shape[:3], v.shape[-1], dtype=q.dtype)
    sharing = q.shape[1] // k.shape[1]
    for b in range(q.shape[0]):
        for h in range(q.shape[1]):
            for i in range(q.shape[2]):
                visible_keys = [j for j in range(k.shape[2]) if sees(sight, rows, b, i, j)]
                scores = [float(q[b, h, i] @ k[b, h // sharing, j]) * SCALE for j in visible_keys]
                if cap is not None:
                    scores = [cap * math.tanh(score / cap) for score in scores]
                powers = [math.exp(score) for score in scores]
                for power, j in zip(powers, visible_keys, strict=True):
                    out[b, h, i] += power / sum(powers) * v[b, h // sharing, j]
    return out


@pytest.mark.parametrize(
    "sight", [Visibility(), Visibility(causal=True), Visibility(False, 3), Visibility(True, 3)], ids=str
)
@pytest.mark.parametrize(
    "kind", ["plain", "shared", "right", "left", "packed", "nothing", "restarted", "gaps", "order"]
)
def test_attention_equals_a_reference_in_loops(sight: Visibility, kind: str, planned: Planned, rows: Kinds) -> None:
    q, k, v = random_heads(7, groups=2)
    batch = rows(kind, 7)
    got = EAGER(q, k, v, planned(EAGER, sight, batch, like=torch.zeros(2, 7, 12, dtype=q.dtype)), None, 0.0)
    assert torch.allclose(got, reference_attention(q, k, v, sight, batch), rtol=0, atol=1e-9)


def test_a_soft_cap_is_applied_before_the_mask(planned: Planned, rows: Kinds) -> None:
    sight = Visibility(causal=True)
    q, k, v = (x * 3 for x in random_heads(6, groups=4))
    plan = planned(EAGER, sight, rows("right", 6), like=q[:, 0], demand=KernelRequest(sight, soft_cap=True))
    assert torch.allclose(
        EAGER(q, k, v, plan, None, 0.0), reference_attention(q, k, v, sight, rows("right", 6), 2.0), atol=1e-9
    )


@pytest.mark.parametrize("causal", [False, True])
def test_attention_equals_that_of_torch(causal: bool, planned: Planned, rows: Kinds) -> None:
    q, k, v = random_heads(9, groups=2)
    got = EAGER(q, k, v, planned(EAGER, Visibility(causal), rows("plain", 9), like=q[:, 0]), None, 0.0)
    expected = functional.scaled_dot_product_attention(q, k, v, is_causal=causal, scale=SCALE, enable_gqa=True)
    assert torch.allclose(got, expected, rtol=0, atol=1e-9)


@pytest.mark.parametrize("kind", ["plain", "packed", "nothing"])
def test_weights_of_a_query_sum_to_one_or_zero(kind: str, planned: Planned, rows: Kinds) -> None:
    q, k, _ = random_heads(9, groups=4)
    weights = attention_weights(q, k, planned(EAGER, Visibility(causal=True), rows(kind, 9), like=q[:, 0]), None)
    assert ((weights >= 0) & (weights <= 1)).all()
    sums = weights.sum(-1)
    documents = rows(kind, 9).documents
    awake = torch.ones(2, 9, dtype=torch.bool) if documents is None else documents >= 0
    assert torch.allclose(sums, awake.unsqueeze(1).to(q.dtype).expand_as(sums), rtol=0, atol=1e-12)


def test_the_mean_of_equal_values_is_that_value(planned: Planned, rows: Kinds) -> None:
    q, k, _ = random_heads(9, groups=4)
    v = torch.tensor([1.0, -2.0, 3.0], dtype=q.dtype).expand(2, 4, 9, 3)
    got = EAGER(q, k, v, planned(EAGER, Visibility(causal=True, window=3), rows("packed", 9), like=q[:, 0]), None, 0.0)
    documents = rows("packed", 9).documents
    assert documents is not None
    assert torch.allclose(got.transpose(1, 2)[documents >= 0], v[0, :, 0], rtol=0, atol=1e-12)


def test_a_position_may_add_to_the_mixed_values(planned: Planned, rows: Kinds) -> None:
    q, k, v = random_heads(5, groups=2)
    table = torch.randn(5, 5, 3, dtype=q.dtype)
    demand = KernelRequest(Visibility(), has_mix=True)
    plan = planned(EAGER, Visibility(), rows("plain", 5), like=q[:, 0], demand=demand)

    def mix(weights: Tensor, pair: Pair) -> Tensor:
        assert pair.k is not None
        assert pair.k.shape == (2, 4, 5, 3)
        return torch.einsum("bhts,tsk->bhtk", weights, table)

    without = EAGER(q, k, v, plan, None, 0.0)
    mixed = EAGER(q, k, v, plan, LayerScoring(None, lambda x: (x, x), mix), 0.0)
    weights = attention_weights(q, k, plan, None)
    assert torch.allclose(mixed - without, (weights.unsqueeze(-1) * table).sum(3), rtol=0, atol=1e-9)
    assert torch.equal(EAGER(q, k, v, plan, LayerScoring(None, lambda x: (x, x), lambda *_: None), 0.0), without)
