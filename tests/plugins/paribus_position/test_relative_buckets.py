"""T5's biases: buckets, table and gradients."""

import math
from dataclasses import replace
from fractions import Fraction

import pytest
import torch
from torch import Tensor

from paribus import Pair, Shape
from paribus_position.relative_buckets import RelativeBuckets, buckets_by_distance

SIZES = [(32, 128), (16, 20), (64, 1024), (8, 5)]


def bucket(separate: int, buckets: int, distance: int) -> int:
    return buckets_by_distance(buckets, distance)[min(separate, distance)]


def bias(position: RelativeBuckets, q: Tensor, k: Tensor) -> Tensor:
    return position.bias(Pair(None, None, q, k, 1.0, 4, dtype=torch.float64))


def build(shape: Shape, causal: bool, buckets: int = 32, distance: int = 128) -> RelativeBuckets:
    torch.manual_seed(0)
    return RelativeBuckets(replace(shape, causal=causal), buckets=buckets, distance=distance).double()


@pytest.mark.few(4)
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize(("buckets", "distance"), SIZES)
def test_matches_t5_exactly(buckets: int, distance: int, causal: bool, shape: Shape) -> None:
    transformers = pytest.importorskip("transformers")
    config = transformers.T5Config(
        d_model=8, num_heads=4, d_kv=6, is_decoder=causal,
        relative_attention_num_buckets=buckets, relative_attention_max_distance=distance,
    )  # fmt: skip
    reference = transformers.models.t5.modeling_t5.T5Attention(config, has_relative_attention_bias=True).double()
    actual = build(shape, causal, buckets, distance)
    with torch.no_grad():
        actual.table.weight.copy_(reference.relative_attention_bias.weight)
    separate = torch.arange(-3 * distance, 3 * distance + 1)
    expected = reference._relative_position_bucket(separate, not causal, buckets, distance)
    ids = torch.tensor(actual.buckets.numbers)[separate.clamp(-distance, distance) + distance]
    assert torch.equal(ids, expected)
    positions = torch.arange(2 * distance + 40).unsqueeze(0)
    assert torch.equal(bias(actual, positions, positions), reference.compute_bias(2 * distance + 40, 2 * distance + 40))
    assert torch.equal(
        bias(actual, positions[:, 30:31], positions[:, :31]), reference.compute_bias(1, 31, past_seen_tokens=30)
    )


@pytest.mark.parametrize(("buckets", "distance"), [(32, 128), (16, 128), (7, 30), (2, 9)])
def test_buckets_grow_geometrically_after_the_exact_half(buckets: int, distance: int) -> None:
    exact = buckets // 2
    result = [bucket(separate, buckets, distance) for separate in range(2 * distance)]
    assert result[:exact] == list(range(exact))
    assert sorted(result) == result
    assert set(result[distance:]) == {buckets - 1}
    geometric = buckets - exact
    for separate in range(exact, 2 * distance):
        step = math.log(separate / exact) / math.log(distance / exact) * geometric
        assert result[separate] - exact in {min(geometric - 1, math.floor(step + tiny)) for tiny in (-1e-9, 1e-9)}


def test_bucket_boundaries_are_inclusive() -> None:
    """At 8 * 16^(k/8), 16, 32 and 64 start the third, fifth and seventh of eight buckets."""
    for separate, step in ((16, 2), (32, 4), (64, 6)):
        assert Fraction(separate, 8) ** 8 == 16**step
        assert bucket(separate, 16, 128) == 8 + step
        assert bucket(separate - 1, 16, 128) == 8 + step - 1


@pytest.mark.parametrize("causal", [True, False])
def test_pairs_read_the_bucket_of_their_distance(causal: bool, shape: Shape) -> None:
    position = build(shape, causal, 8, 6)
    q, k = torch.tensor([[3, 0, 9], [-2, 40, 1]]), torch.tensor([[0, 5, 3, 20], [7, -9, 0, 1]])
    actual = bias(position, q, k)
    assert actual.shape == (2, 4, 3, 4)
    for b in range(2):
        for t in range(3):
            for s in range(4):
                behind = int(q[b, t] - k[b, s])
                row = bucket(max(behind, 0), 8, 6) if causal else bucket(abs(behind), 4, 6) + 4 * (behind < 0)
                assert torch.equal(actual[b, :, t, s], position.table.weight[row])


def test_only_used_buckets_have_a_gradient(shape: Shape) -> None:
    position, positions = build(shape, True), torch.arange(20).unsqueeze(0)
    assert torch.equal(bias(position, positions, positions), bias(position, positions + 1234, positions + 1234))
    bias(position, positions[:, 2:3], positions[:, :2]).sum().backward()  # distances 2 and 1
    assert position.table.weight.grad is not None
    assert position.table.weight.grad.sum(-1).tolist() == [0, 4, 4, *[0] * 29]


@pytest.mark.parametrize(
    ("causal", "buckets", "distance", "message"),
    [
        (False, 7, 128, r"at least 4 .* got 7"),
        (False, 2, 128, r"at least 4 .* got 2"),
        (True, 32, 16, r"`distance` must be more than 16, got 16"),
        (False, 32, 8, r"`distance` must be more than 8"),
    ],
)
def test_invalid_sizes_are_rejected(causal: bool, buckets: int, distance: int, message: str, shape: Shape) -> None:
    with pytest.raises(ValueError, match=message):
        build(shape, causal, buckets, distance)


def test_it_has_no_maximum_length(shape: Shape) -> None:
    assert build(shape, True).position_limit() is None
