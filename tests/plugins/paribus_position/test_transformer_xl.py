"""Transformer-XL's positions: the paper's four terms in a loop, XLNet's code, and both methods."""

import math
import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from paribus import Load, Pair, Shape
from paribus_position.transformer_xl import (
    LayerProjection,
    QueryBiases,
    TransformerXL,
    contiguous_offset,
    relative_shift,
)

Randomise = Callable[[nn.Module], nn.Module]
MakePair = Callable[..., Pair]
TURNING = {"width": 8, "head_width": 6}  # few channels: rotating queries is cheaper
SHIFTING = {"width": 24, "head_width": 2}
ODD = {"width": 7, "head_width": 3}


def position_at(positions: Tensor, batch: int, row: int) -> int:
    return int(positions[batch % positions.shape[0], row])


def parts_of(position: TransformerXL, pair: Pair) -> tuple[LayerProjection, QueryBiases]:
    assert isinstance(pair.position_part, LayerProjection)
    biases = pair.position_part.leanings or position.leanings
    assert biases is not None
    return pair.position_part, biases


def loop_reference(position: TransformerXL, pair: Pair, width: int, base: float) -> Tensor:
    """Compute terms (b), (c) and (d) of section 3.3."""
    part, biases = parts_of(position, pair)
    assert pair.q is not None
    assert pair.k is not None
    batch, heads, queries, keys = (*pair.q.shape[:3], pair.k.shape[2])
    scores = torch.zeros(batch, heads, queries, keys).double()
    for b in range(batch):
        for i in range(queries):
            for j in range(keys):
                away = position_at(pair.q_positions, b, i) - position_at(pair.k_positions, b, j)
                angles = [away / base ** (2 * f / width) for f in range((width + 1) // 2)]
                waves = torch.tensor([*map(math.sin, angles), *map(math.cos, angles)], dtype=torch.float64)
                r = part.project(waves).view(heads, -1)
                for h in range(heads):
                    q, k, u, v = pair.q[b, h, i], pair.k[b, h, j], biases.key[h], biases.distance[h]
                    scores[b, h, i, j] = (q.dot(r[h]) + u.dot(k) + v.dot(r[h])) * pair.scale
    return scores


@pytest.mark.covering(strength=1)
@pytest.mark.parametrize("untied", [True, False])
@pytest.mark.parametrize("sizes", [TURNING, SHIFTING, ODD], ids=["turning", "shifting", "odd"])
def test_matches_the_formula_of_the_paper_at_any_positions(
    sizes: dict[str, Any],
    untied: bool,
    places: tuple[Tensor, Tensor],
    shape: Shape,
    randomise: Randomise,
    make_pair: MakePair,
) -> None:
    shape = replace(shape, **sizes)
    position = TransformerXL(shape, untied=untied, base=50.0)
    randomise(position)
    pair = make_pair(position, *places, place=shape)
    assert pair.q is not None
    assert pair.k is not None
    assert pair.position_part is not None
    actual, expected = position.bias(pair), loop_reference(position, pair, shape.width, 50.0)
    assert torch.allclose(actual, expected, rtol=0, atol=1e-9)
    leaves = [pair.q, pair.k, *position.parameters(), *pair.position_part.parameters()]
    for left, right in zip(*(torch.autograd.grad(x.sin().sum(), leaves) for x in (actual, expected)), strict=True):
        assert torch.allclose(left, right, rtol=0, atol=1e-9)


@pytest.mark.parametrize(("sizes", "times"), [(TURNING, 0), (SHIFTING, 1)], ids=["turning", "shifting"])
def test_consecutive_positions_use_the_cheaper_method(
    sizes: dict[str, Any],
    times: int,
    shape: Shape,
    randomise: Randomise,
    make_pair: MakePair,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    module: list[Tensor] = []

    def record_shift(x: Tensor) -> Tensor:
        module.append(x)
        return relative_shift(x)

    monkeypatch.setattr(sys.modules[TransformerXL.__module__], "relative_shift", record_shift)
    shape = replace(shape, **sizes)
    position, positions = TransformerXL(shape), torch.arange(9).unsqueeze(0)
    randomise(position)
    position.bias(make_pair(position, positions, positions, place=shape))
    assert len(module) == times
    position.bias(make_pair(position, positions[:, 8:], positions, place=shape))  # one query: never shifted
    position.bias(make_pair(position, positions % 5, positions % 5, place=shape))  # positions restart
    assert len(module) == times


def test_a_shift_aligns_distances_with_keys_without_a_copy() -> None:
    by_distance = (4 - torch.arange(5 + 7)).expand(2, 3, 5, -1).contiguous()  # T = 5, S = 7: from T - 1 down
    actual = relative_shift(by_distance)
    assert actual.shape == (2, 3, 5, 7)
    assert torch.equal(actual[1, 2], torch.arange(5).unsqueeze(-1) - torch.arange(7))
    assert actual.untyped_storage().data_ptr() == by_distance.untyped_storage().data_ptr()


RAMP = torch.arange(6).unsqueeze(0)
COUNTED = {
    "the same rows": (RAMP, RAMP, 0),
    "behind a cache": (RAMP[:, 4:], RAMP, 4),
    "one row": (RAMP[:, 5:], RAMP[:, :1], 5),
    "padded on the left, and its own rows": (RAMP - torch.tensor([[2], [0]]), RAMP - torch.tensor([[2], [0]]), 0),
    "one side for all": (RAMP + 3, RAMP.expand(2, -1), 3),
    "sequences unlike": (RAMP, RAMP - torch.tensor([[2], [0]]), None),
    "packed": (RAMP % 4, RAMP % 4, None),
    "gaps": (RAMP * 2, RAMP * 2, None),
    "keys in another order": (RAMP, RAMP.flip(1), None),
    "shapes alone": (RAMP[:, 2:].to("meta"), RAMP.to("meta"), 2),
}


@pytest.mark.parametrize(("q", "k", "ahead"), COUNTED.values(), ids=COUNTED)
def test_contiguous_positions_are_detected(q: Tensor, k: Tensor, ahead: int | None) -> None:
    assert contiguous_offset(q, k) == ahead


@pytest.mark.covering
@pytest.mark.parametrize(("queries", "keys"), [(7, 7), (1, 9), (3, 9), (1, 1)])
@pytest.mark.parametrize("sizes", [(2, 4), (3, 6)], ids=["two heads", "three heads"])
@pytest.mark.parametrize("segments", [False, True], ids=["", "segments"])
def test_matches_xlnet(queries: int, keys: int, sizes: tuple[int, int], segments: bool, randomise: Randomise) -> None:
    transformers = pytest.importorskip("transformers")
    heads, head_width = sizes
    config = transformers.XLNetConfig(d_model=heads * head_width, n_head=heads, n_layer=1, vocab_size=9, d_inner=4)
    model = transformers.XLNetModel(config)
    reference: Any = randomise(model.layer[0].rel_attn)
    shape = Shape(heads * head_width, heads, head_width, 16, 9, 1)
    position = TransformerXL(shape, untied=True, segments=segments)
    part = position.layer_part(shape).double()
    biases = part.leanings
    assert biases is not None
    kinds = torch.tensor([[0] * (keys // 2) + [1] * (keys - keys // 2), [0, 1, 0, 0, 1, 1, 0, 2, 0][:keys]])
    segment_options = {"q_segments": kinds[:, keys - queries :], "k_segments": kinds} if segments else {}
    with torch.no_grad():
        part.project.weight.copy_(reference.r.flatten(1).T)
        biases.key.copy_(reference.r_w_bias)
        biases.distance.copy_(reference.r_r_bias)
        pair = Pair(
            torch.randn(2, heads, queries, head_width).double(), torch.randn(2, heads, keys, head_width).double(),
            torch.arange(keys - queries, keys).unsqueeze(0), torch.arange(keys).unsqueeze(0),
            head_width**-0.5, heads, None, torch.float64, part, **segment_options,
        )  # fmt: skip
        if biases.segment is not None and part.segments is not None:
            biases.segment.copy_(reference.r_s_bias)
            part.segments.copy_(reference.seg_embed)
        assert pair.q is not None
        assert pair.k is not None
        weights = (pair.q @ pair.k.transpose(-1, -2) * pair.scale + position.bias(pair)).softmax(-1)
        distances = torch.arange(keys, -queries, -1)
        waves = position._waves(distances.unsqueeze(0), torch.float64)
        rough = model.relative_positional_encoding(queries, keys, bsz=1)[:, 0]
        assert torch.allclose(waves[0], rough.double(), rtol=0, atol=1e-5)  # computed in float32
        r = torch.einsum("ih,hnd->ind", waves[0], reference.r).unsqueeze(1).expand(-1, 2, -1, -1)
        by_row = [x.permute(2, 0, 1, 3) for x in (pair.q, pair.k, pair.k)]
        unlike = (kinds[:, keys - queries :, None] != kinds[:, None]).long().permute(1, 2, 0)
        matrix = nn.functional.one_hot(unlike, 2).double() if segments else None
        _, expected = reference.rel_attn_core(*by_row, r, seg_mat=matrix, output_attentions=True)
    assert torch.allclose(weights, expected.permute(2, 3, 0, 1), rtol=0, atol=1e-9)


@pytest.mark.parametrize("sizes", [TURNING, SHIFTING, ODD], ids=["turning", "shifting", "odd"])
@pytest.mark.parametrize(("queries", "keys"), [(9, 9), (1, 9), (2, 9)])
def test_the_declared_cost_is_correct(
    sizes: dict[str, Any], queries: int, keys: int, shape: Shape, make_pair: MakePair
) -> None:
    shape = replace(shape, **sizes)
    position, positions = TransformerXL(shape).double(), torch.arange(keys).unsqueeze(0)
    pair = make_pair(position, positions[:, keys - queries :], positions, place=shape)
    assert pair.q is not None
    assert pair.k is not None
    with FlopCounterMode(display=False) as counter:
        position.bias(pair._replace(q=pair.q[:1], k=pair.k[:1]))
    assert counter.get_total_flops() == position.cost(Load(queries, keys)).flops


def test_the_cost_of_segments_is_two_products_per_query(shape: Shape) -> None:
    plain, with_segments = (
        TransformerXL(shape, segments=segments).cost(Load(5, 9)).flops for segments in (False, True)
    )
    assert with_segments - plain == 2 * 5 * 2 * shape.heads * shape.head_width


def test_tokens_without_segments_share_one(shape: Shape, make_pair: MakePair) -> None:
    position, positions = TransformerXL(shape, segments=True).double(), torch.arange(5).unsqueeze(0)
    for parameter in position.parameters():
        nn.init.normal_(parameter)
    pair = make_pair(position, positions, positions, place=shape)
    same = pair._replace(q_segments=torch.ones(1, 5), k_segments=torch.ones(1, 5))
    assert torch.equal(position.bias(pair), position.bias(same))


def test_u_and_v_belong_to_each_layer_or_to_all(shape: Shape) -> None:
    names = {"leanings.key", "leanings.distance"}
    for untied in (True, False):
        position = TransformerXL(shape, untied=untied)
        states = {name for name, _ in position.named_parameters()}
        part = {name for name, _ in position.layer_part(shape).named_parameters()}
        assert (states, part) == ((set(), {"project.weight", *names}) if untied else (names, {"project.weight"}))


def test_it_has_no_maximum_length(shape: Shape) -> None:
    assert TransformerXL(shape).position_limit() is None
