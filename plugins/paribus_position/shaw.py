"""The position `shaw`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, ClassVar, final

from torch import Tensor, nn

from paribus import Cost, Load, Pair, Position, Range, Role, Shape, Traits


@final
class Shaw(Position):
    """Adds a vector for the distance to each key and to each value, clipped to `distance` either way:
    "Self-Attention with Relative Position Representations" (Shaw et al. 2018).

    The vectors are each layer's own, and shared by its heads. A query meets the 2 * distance + 1 vectors of keys once,
    and its keys pick from these scores; its weights are summed by distance before they meet the vectors of values.
    So nothing is ever as large as (T, S, K).
    """

    traits: ClassVar[Traits] = {"moments": ["bias", "mix"], "bias": "content", "owner": "layer"}
    roles: ClassVar[Mapping[str, Role]] = {"keys.weight": "embedding", "values.weight": "embedding"}

    def __init__(
        self,
        shape: Shape,
        *,
        distance: Annotated[int, "from how far on all rows count as equally far", Range(1)] = 16,
        values: Annotated[bool, "whether values are told of the distance, and not keys alone"] = True,
    ) -> None:
        super().__init__()
        self.shape = shape
        self.distance = distance
        self.keys = nn.Embedding(2 * distance + 1, shape.head_width)
        self.values = nn.Embedding(2 * distance + 1, shape.head_width) if values else None

    def mixes(self) -> bool:
        return self.values is not None

    def bias(self, pair: Pair) -> Tensor:
        """(B, H, T, S)."""
        assert pair.q is not None, "a bias that reads content is shown it"
        scores = pair.q @ self.keys.weight.to(pair.q.dtype).T * pair.scale  # (B, H, T, 2 * distance + 1)
        return scores.gather(-1, self._rows(pair).expand(*scores.shape[:2], -1, -1)).to(pair.dtype)

    def mix(self, weights: Tensor, pair: Pair) -> Tensor | None:
        """(B, H, T, S) -> (B, H, T, K)."""
        if self.values is None:
            return None
        summed = weights.new_zeros(*weights.shape[:-1], 2 * self.distance + 1)
        summed = summed.scatter_add(-1, self._rows(pair).expand(*weights.shape[:2], -1, -1), weights)
        return summed @ self.values.weight.to(summed.dtype)

    def _rows(self, pair: Pair) -> Tensor:
        """Which vector tells of each pair, (B|1, 1, T, S): the first is that of keys far back."""
        ahead = pair.k_positions.unsqueeze(-2) - pair.q_positions.unsqueeze(-1)
        return (ahead.clamp(-self.distance, self.distance) + self.distance).unsqueeze(1)

    def cost(self, load: Load) -> Cost:
        tables = 1 if self.values is None else 2
        each = 2 * self.shape.head_width * (2 * self.distance + 1)
        return Cost(flops=load.queries * self.shape.heads * each * tables)

    def reach(self) -> int | None:
        return None
