"""Disentangled positions: a loop, the published code of both versions, and shared buckets."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from paribus import Heads, Load, Pair, Shape
from paribus_position.disentangled import Disentangled, Projections

Randomise = Callable[[nn.Module], nn.Module]
MakePair = Callable[..., Pair]
same = partial(torch.testing.assert_close, rtol=0, atol=1e-9)
KINDS: dict[str, dict[str, Any]] = {
    "v1": {"distance": 3, "separate_projections": True},
    "v1, content against distance": {"distance": 3, "separate_projections": True, "scores": "c2p"},
    "v1, distance against content": {"distance": 3, "separate_projections": True, "scores": "p2c"},
    "v3": {"distance": 9, "buckets": 4, "normed": True},
    "v3, content against distance": {"distance": 9, "buckets": 4, "scores": "c2p"},
    "v3, distance against content": {"distance": 9, "buckets": 4, "scores": "p2c"},
    "far": {"distance": 512},
}


def position_at(positions: Tensor, batch: int, row: int) -> int:
    return int(positions[batch % positions.shape[0], row])


def loop_reference(position: Disentangled, pair: Pair) -> Tensor:
    """Compute the second and third term of equation 4, both at i - j."""
    assert pair.q is not None
    assert pair.k is not None
    assert pair.project is not None
    table = position.table.weight if position.norm is None else position.norm(position.table.weight)
    part = pair.position_part
    if isinstance(part, Projections):
        queries, keys = (
            None if item is None else item(table).view(-1, pair.heads, pair.q.shape[-1]).transpose(0, 1)
            for item in (part.query, part.key)
        )
    else:
        queries, keys = pair.project(table)
    batch, heads, positions, size = (*pair.q.shape[:3], pair.k.shape[2])
    scores = torch.zeros(batch, heads, positions, size).double()
    for b in range(batch):
        for i in range(positions):
            for j in range(size):
                away = position_at(pair.q_positions, b, i) - position_at(pair.k_positions, b, j)
                row = int(position.table_index(torch.tensor(away)))
                for h in range(heads):
                    if position.scores != "p2c":
                        assert keys is not None
                        scores[b, h, i, j] += pair.q[b, h, i].dot(keys[h, row])
                    if position.scores != "c2p":
                        assert queries is not None
                        scores[b, h, i, j] += pair.k[b, h, j].dot(queries[h, row])
    return scores * pair.scale


@pytest.mark.covering(strength=1)
@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_matches_the_formula_of_the_paper_at_any_positions(
    kind: dict[str, Any], places: tuple[Tensor, Tensor], shape: Shape, randomise: Randomise, make_pair: MakePair
) -> None:
    position = Disentangled(shape, **kind)
    randomise(position)
    pair = make_pair(position, *places)
    actual, expected = position.bias(pair), loop_reference(position, pair)
    same(actual, expected)
    assert pair.q is not None
    assert pair.k is not None
    leaves = [
        pair.q,
        pair.k,
        *position.parameters(),
        *(pair.position_part.parameters() if pair.position_part is not None else ()),
    ]
    grads = [torch.autograd.grad(x.sin().sum(), leaves, allow_unused=True) for x in (actual, expected)]
    for left, right in zip(*grads, strict=True):
        assert (left is None) == (right is None)
        if left is not None:
            same(left, right)


def test_distances_beyond_the_limit_share_a_vector(shape: Shape) -> None:
    positions = Disentangled(shape, distance=3).table_index(torch.arange(-6, 7))
    assert positions.tolist() == [0, 0, 0, 0, 1, 2, 3, 4, 5, 5, 5, 5, 5]


def test_buckets_grow_with_distance(shape: Shape) -> None:
    position = Disentangled(shape, distance=512, buckets=256)
    positions = position.table_index(torch.arange(0, 1000))
    assert positions[:129].tolist() == list(range(256, 385))
    sizes = positions[129:511].unique_consecutive(return_counts=True)[1]
    assert (positions.diff() >= 0).all()
    assert (sizes[-5:] > sizes[:5]).all()
    assert positions[511:].unique().tolist() == [511]


@pytest.mark.parametrize(("buckets", "distance"), [(256, 512), (32, 128), (4, 9), (7, 40), (4, 5), (256, 4096)])
def test_buckets_match_the_published_code(buckets: int, distance: int, shape: Shape) -> None:
    published = pytest.importorskip("transformers.models.deberta_v2.modeling_deberta_v2")
    distances = torch.arange(-2 * distance, 2 * distance + 1)
    reference = published.make_log_bucket_position(distances, buckets, distance).long()
    actual = Disentangled(shape, distance=distance, buckets=buckets).table_index(distances)
    assert torch.equal(actual, (reference + buckets).clamp(0, 2 * buckets - 1))


def test_a_distance_below_the_exact_buckets_is_rejected(shape: Shape) -> None:
    with pytest.raises(ValueError, match="at least 10"):
        Disentangled(shape, distance=9, buckets=16)
    Disentangled(shape, distance=10, buckets=16)


@pytest.mark.parametrize(("scores", "terms"), [("both", 3), ("c2p", 2), ("p2c", 2)])
def test_the_scale_counts_terms(scores: Any, terms: int, shape: Shape) -> None:
    assert Disentangled(shape, scores=scores).score_terms() == terms


def test_dropout_applies_to_the_table_in_training(shape: Shape, randomise: Randomise, make_pair: MakePair) -> None:
    position, positions = Disentangled(replace(shape, dropout=0.5)), torch.arange(5).unsqueeze(0)
    randomise(position)
    pair = make_pair(position, positions, positions)
    still = position.bias(pair)
    assert torch.equal(position.bias(pair), still)
    position.train()
    assert not torch.equal(position.bias(pair), still)


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
@pytest.mark.parametrize(("queries", "keys"), [(9, 9), (1, 9)])
def test_the_declared_cost_is_correct(
    kind: dict[str, Any], queries: int, keys: int, shape: Shape, randomise: Randomise, make_pair: MakePair
) -> None:
    position, positions = Disentangled(shape, **kind), torch.arange(keys).unsqueeze(0)
    randomise(position)
    pair = make_pair(position, positions[:, keys - queries :], positions)
    assert pair.q is not None
    assert pair.k is not None
    heads = randomise(Heads(shape, kv_heads=shape.heads, bias=True))
    assert isinstance(heads, Heads)
    with FlopCounterMode(display=False) as counter:
        position.bias(pair._replace(q=pair.q[:1], k=pair.k[:1], project=heads.project))
    assert counter.get_total_flops() == position.cost(Load(queries, keys)).flops


def test_it_has_no_maximum_length(shape: Shape) -> None:
    assert Disentangled(shape).position_limit() is None


# The published layers keep their scale in float32: exact where it is the root of a square.
ASKED = {"both": ["c2p", "p2c"], "c2p": ["c2p"], "p2c": ["p2c"]}


def context(position: Disentangled, heads: Heads, part: nn.Module | None, x: Tensor, mask: Tensor) -> Tensor:
    """Run softmax attention with the position, without the output projection: (B, T, D) -> (B, T, H * K)."""
    q, k, v = heads.queries(x), heads.keys(x), heads.values(x)
    positions, scale = torch.arange(x.shape[1]).unsqueeze(0), (q.shape[-1] * position.score_terms()) ** -0.5
    pair = Pair(q, k, positions, positions, scale, q.shape[1], heads.project, torch.float64, part)
    scores = (q @ k.transpose(-1, -2) * scale + position.bias(pair)).masked_fill(~mask, -1e300)
    mixed: Tensor = scores.softmax(-1) @ v
    return mixed.transpose(1, 2).flatten(2)


def padded(length: int) -> tuple[Tensor, Tensor]:
    """Return hidden states of two sequences, the second one padded, and their mask (B, 1, T, T)."""
    x = torch.randn(2, length, 24, generator=torch.Generator().manual_seed(length), dtype=torch.float64)
    text = torch.arange(length) < torch.tensor([[length], [max(1, length - 3)]])
    return x, text[:, None, None] & text[:, None, :, None]


def copy_linear(linear: nn.Linear | None, weight: Tensor, bias: Tensor | None) -> None:
    assert linear is not None
    linear.weight.copy_(weight)
    if linear.bias is not None:
        linear.bias.zero_() if bias is None else linear.bias.copy_(bias)


@pytest.mark.covering
@pytest.mark.parametrize("length", [1, 2, 9, 13])
@pytest.mark.parametrize("scores", ASKED)
@pytest.mark.parametrize("separate", [False, True], ids=["shared", "apart"])
@pytest.mark.parametrize("buckets", [None, 4])
def test_matches_deberta_v2(
    buckets: int | None, separate: bool, scores: Any, length: int, randomise: Randomise
) -> None:
    published = pytest.importorskip("transformers.models.deberta_v2.modeling_deberta_v2")
    heads = 2 if scores == "both" else 3  # 3 * 12 and 2 * 8 are squares
    shape = Shape(24, heads, 24 // heads, 16, 9, 1)
    config = published.DebertaV2Config(
        hidden_size=24, num_attention_heads=heads, relative_attention=True, max_relative_positions=6,
        position_buckets=buckets or -1, pos_att_type=ASKED[scores], share_att_key=not separate,
    )  # fmt: skip
    reference: Any = randomise(published.DisentangledSelfAttention(config))
    position = Disentangled(shape, distance=6, buckets=buckets, scores=scores, separate_projections=separate)
    randomise(position)
    actual, part = Heads(shape, kv_heads=heads, bias=True).double(), position.layer_part(shape)
    with torch.no_grad():
        for left, right in (
            (actual.q, reference.query_proj),
            (actual.k, reference.key_proj),
            (actual.v, reference.value_proj),
        ):
            copy_linear(left, right.weight, right.bias)
        if part is not None:
            part.double()
            if scores != "c2p":
                copy_linear(part.query, reference.pos_query_proj.weight, reference.pos_query_proj.bias)
            if scores != "p2c":  # version 1 has no bias here
                reference.pos_key_proj.bias.zero_()
                copy_linear(part.key, reference.pos_key_proj.weight, None)
        x, mask = padded(length)
        expected, _ = reference(x, mask, rel_embeddings=position.table.weight)
        same(context(position, actual, part, x, mask), expected)


@pytest.mark.parametrize("length", [1, 2, 9, 13])
@pytest.mark.parametrize("scores", ASKED)
def test_matches_deberta_v1(scores: Any, length: int, randomise: Randomise) -> None:
    published = pytest.importorskip("transformers.models.deberta.modeling_deberta")
    heads = 2 if scores == "both" else 3
    shape = Shape(24, heads, 24 // heads, 16, 9, 1)
    config = published.DebertaConfig(
        hidden_size=24, num_attention_heads=heads, relative_attention=True, max_relative_positions=6,
        pos_att_type=ASKED[scores],
    )  # fmt: skip
    reference: Any = randomise(published.DisentangledSelfAttention(config))
    position = Disentangled(shape, distance=6, scores=scores, separate_projections=True)
    randomise(position)
    actual, part = Heads(shape, kv_heads=heads, bias=True).double(), position.layer_part(shape)
    assert part is not None
    part.double()
    with torch.no_grad():
        arranged = reference.in_proj.weight.view(heads, 3, 24 // heads, 24).transpose(0, 1).flatten(1, 2)
        copy_linear(actual.q, arranged[0], reference.q_bias)
        copy_linear(actual.k, arranged[1], None)
        copy_linear(actual.v, arranged[2], reference.v_bias)
        if scores != "c2p":
            copy_linear(part.query, reference.pos_q_proj.weight, reference.pos_q_proj.bias)
        if scores != "p2c":
            copy_linear(part.key, reference.pos_proj.weight, None)
        x, mask = padded(length)
        distances = published.build_relative_position(x, x)
        expected, _ = reference(x, mask, relative_pos=distances, rel_embeddings=position.table.weight)
        same(context(position, actual, part, x, mask), expected)
