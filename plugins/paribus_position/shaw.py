"""Relative position vectors for keys and values (`shaw`)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, ClassVar, final

from torch import Tensor, nn

from paribus import Cost, Load, Pair, Position, PositionTraits, Range, Role, Shape


@final
class Shaw(Position):
    """Relative position representations of keys and values, clipped to `distance` (Shaw et al. 2018).

    "Self-Attention with Relative Position Representations". Each layer has its own vectors, shared by its heads. A
    query is multiplied with the 2 * distance + 1 key vectors once, and its keys gather from these scores; weights are
    summed by distance before they are multiplied with the value vectors. No tensor is as large as (T, S, K).
    """

    traits: ClassVar[PositionTraits] = {"hooks": ["bias", "mix"], "bias": "content", "owner": "layer"}
    roles: ClassVar[Mapping[str, Role]] = {"keys.weight": "embedding", "values.weight": "embedding"}

    def __init__(
        self,
        shape: Shape,
        *,
        distance: Annotated[int, "distance beyond which all positions share one vector", Range(1)] = 16,
        values: Annotated[bool, "also learn vectors for values, not only for keys"] = True,
    ) -> None:
        super().__init__()
        self.shape = shape
        self.distance = distance
        self.keys = nn.Embedding(2 * distance + 1, shape.head_width)
        self.values = nn.Embedding(2 * distance + 1, shape.head_width) if values else None

    def uses_mix(self) -> bool:
        return self.values is not None

    def bias(self, pair: Pair) -> Tensor:
        """(B, H, T, S)."""
        assert pair.q is not None, "a content bias needs queries"
        scores = pair.q @ self.keys.weight.to(pair.q.dtype).T * pair.scale  # (B, H, T, 2 * distance + 1)
        return scores.gather(-1, self._distance_index(pair).expand(*scores.shape[:2], -1, -1)).to(pair.dtype)

    def mix(self, weights: Tensor, pair: Pair) -> Tensor | None:
        """(B, H, T, S) -> (B, H, T, K)."""
        if self.values is None:
            return None
        summed = weights.new_zeros(*weights.shape[:-1], 2 * self.distance + 1)
        summed = summed.scatter_add(-1, self._distance_index(pair).expand(*weights.shape[:2], -1, -1), weights)
        return summed @ self.values.weight.to(summed.dtype)

    def _distance_index(self, pair: Pair) -> Tensor:
        """Return the vector's index for each pair, (B|1, 1, T, S), 0 for keys furthest behind."""
        offset = pair.k_positions.unsqueeze(-2) - pair.q_positions.unsqueeze(-1)
        return (offset.clamp(-self.distance, self.distance) + self.distance).unsqueeze(1)

    def cost(self, load: Load) -> Cost:
        tables = 1 if self.values is None else 2
        table_flops = 2 * self.shape.head_width * (2 * self.distance + 1)
        return Cost(flops=load.queries * self.shape.heads * table_flops * tables)

    def position_limit(self) -> int | None:
        return None
