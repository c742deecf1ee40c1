"""Relative position biases in buckets (`t5`)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, ClassVar, final

import torch
from torch import Tensor, nn

from paribus import ConstantTensor, Pair, Position, PositionTraits, Range, Role, Shape


@final
class RelativeBuckets(Position):
    """Relative position bias for each head and bucket of distances (Raffel et al. 2020).

    "Exploring the Limits of Transfer Learning with a Unified Text-to-Text Transformer". Half of the buckets hold one
    distance each, the others ranges that grow geometrically up to `distance`; the last bucket holds all larger ones.
    Bidirectional stacks split the buckets between both sides. One table of (buckets, H) serves all layers. T5's
    attention does not scale its scores (`scores.scaled`), and its cross-attention has no positions.
    """

    traits: ClassVar[PositionTraits] = {"hooks": ["bias"], "bias": "positions", "distance_bias": True, "owner": "stack"}
    roles: ClassVar[Mapping[str, Role]] = {"table.weight": "embedding"}

    def __init__(
        self,
        shape: Shape,
        *,
        buckets: Annotated[int, "size of the table; in bidirectional stacks, of both sides together", Range(2)] = 32,
        distance: Annotated[int, "distance from which all keys share the last bucket", Range(2)] = 128,
    ) -> None:
        super().__init__()
        sides = 1 if shape.causal else 2
        side_buckets = buckets // sides
        if side_buckets < 2 or side_buckets * sides != buckets:
            raise ValueError(f"`buckets` must be even and at least 4 in a bidirectional stack, got {buckets}")
        if distance <= side_buckets // 2:
            raise ValueError(f"`distance` must be more than {side_buckets // 2}, got {distance}")
        past = buckets_by_distance(side_buckets, distance)
        future = [0] * distance if shape.causal else [side_buckets + bucket for bucket in past[1:]]
        self.distance = distance
        # From the most distant key before the query to the most distant one after it.
        self.buckets = ConstantTensor([*reversed(past), *future], torch.long)
        self.table = nn.Embedding(buckets, shape.heads)

    def bias(self, pair: Pair) -> Tensor:
        """(B|1, H, T, S)."""
        offset = pair.k_positions.unsqueeze(-2) - pair.q_positions.unsqueeze(-1)  # (B|1, T, S)
        index = offset.clamp(-self.distance, self.distance) + self.distance
        by_offset: Tensor = self.table(self.buckets.like(index)).t()  # (H, 2 * distance + 1)
        biases = by_offset.contiguous().index_select(1, index.flatten())
        return biases.view(-1, *index.shape).transpose(0, 1)

    def position_limit(self) -> int | None:
        return None


def buckets_by_distance(buckets: int, distance: int) -> list[int]:
    """Return the bucket of each distance from 0 to `distance`; half of the buckets hold one distance each.

    Beyond these, the bucket is
        exact + floor(log(apart / exact) / log(distance / exact) * remaining),
    computed in integers: a rounding error in a logarithm would move a distance to the bucket below.
    """
    exact = buckets // 2
    remaining, step = buckets - exact, 0
    result = list(range(exact))
    for distance_value in range(exact, distance + 1):
        while step < remaining - 1 and distance_value**remaining >= exact ** (remaining - step - 1) * distance ** (
            step + 1
        ):
            step += 1
        result.append(exact + step)
    return result
