"""The position `t5`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, ClassVar, final

import torch
from torch import Tensor, nn

from paribus import Pair, Position, Range, Role, Shape, Traits


@final
class RelativeBuckets(Position):
    """Adds a bias learned for each head and bucket of distances: "Exploring the Limits of Transfer Learning with a
    Unified Text-to-Text Transformer" (Raffel et al. 2020).

    Half of the buckets are for one distance each, the others for ranges that grow geometrically up to `distance`; what
    is further away shares the last. Rows that see both sides have half of all buckets for each side. One table of
    (buckets, H) serves all layers. T5's own attention does not scale its scores (`scores.scaled`), and its
    cross-attention has no position at all.
    """

    traits: ClassVar[Traits] = {"moments": ["bias"], "bias": "positions", "distances": True, "owner": "stack"}
    roles: ClassVar[Mapping[str, Role]] = {"table.weight": "embedding"}

    def __init__(
        self,
        shape: Shape,
        *,
        buckets: Annotated[int, "rows of the table; of both sides together, where both are seen", Range(2)] = 32,
        distance: Annotated[int, "from here on, all share the last bucket", Range(2)] = 128,
    ) -> None:
        super().__init__()
        sides = 1 if shape.causal else 2
        own = buckets // sides
        if own < 2 or own * sides != buckets:
            raise ValueError(f"`buckets` must be even and at least 4 where rows see both sides, but is {buckets}")
        if distance <= own // 2:
            raise ValueError(f"`distance` must be more than {own // 2}, the distances with a bucket each")
        back = by_distance(own, distance)
        ahead = [0] * distance if shape.causal else [own + found for found in back[1:]]
        self.distance = distance
        self.buckets = [*reversed(back), *ahead]  # of a key so far before the query … so far behind it
        self.table = nn.Embedding(buckets, shape.heads)

    def bias(self, pair: Pair) -> Tensor:
        """(B|1, H, T, S)."""
        apart = pair.k_positions.unsqueeze(-2) - pair.q_positions.unsqueeze(-1)  # (B|1, T, S)
        places = apart.clamp(-self.distance, self.distance) + self.distance
        learned: Tensor = self.table(torch.tensor(self.buckets, device=places.device)).t()  # (H, 2 * distance + 1)
        found = learned.contiguous().index_select(1, places.flatten())
        return found.view(-1, *places.shape).transpose(0, 1)

    def reach(self) -> int | None:
        return None


def by_distance(buckets: int, distance: int) -> list[int]:
    """The bucket of each distance from 0 to `distance`; half of the buckets are for one each. Further on it is

        exact + floor(log(apart / exact) / log(distance / exact) * more),

    in whole numbers: a logarithm that comes out a hair too small would put a distance into the bucket before its own.
    """
    exact = buckets // 2
    more, step = buckets - exact, 0
    found = list(range(exact))
    for apart in range(exact, distance + 1):
        while step < more - 1 and apart**more >= exact ** (more - step - 1) * distance ** (step + 1):
            step += 1
        found.append(exact + step)
    return found
