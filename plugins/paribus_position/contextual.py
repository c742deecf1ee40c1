"""Contextual position encoding (`cope`)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, ClassVar, final

import torch
from torch import Tensor, nn

from paribus import Cost, Load, Pair, Position, PositionTraits, Range, Role, Shape, running_sums


@final
class Contextual(Position):
    """Contextual position encoding, CoPE (Golovneva et al. 2024).

    "Contextual Position Encoding: Learning to Count What's Important". The position of a key is the sum of the gates
    sigmoid(q·k) of the keys from it to the query, itself included. The query is multiplied with one vector for each
    whole number; between two numbers the score is interpolated. Each layer has its own vectors, shared by its heads.
    Only keys that the query sees are counted, so other documents and padding are not. Scores of keys are computed a
    second time, for the gates.
    """

    traits: ClassVar[PositionTraits] = {"hooks": ["bias"], "bias": "content", "owner": "layer", "visibility": "past"}
    roles: ClassVar[Mapping[str, Role]] = {"table.weight": "embedding"}

    def __init__(
        self,
        shape: Shape,
        *,
        positions: Annotated[int, "vectors, of 0 and up; larger sums share the last", Range(2)] = 64,
    ) -> None:
        super().__init__()
        self.shape = shape
        self.table = nn.Embedding(positions, shape.head_width)

    def bias(self, pair: Pair) -> Tensor:
        """(B, H, T, S)."""
        assert pair.q is not None, "a content bias needs queries and keys"
        assert pair.k is not None, "a content bias needs queries and keys"
        last = self.table.num_embeddings - 1
        counts = counts_to_query(gates(pair.q, pair.k, pair), pair.k_positions).clamp(max=last)
        below = counts.floor()
        share = counts - below
        index = below.long()
        scores = pair.q @ self.table.weight.to(pair.q.dtype).T  # (B, H, T, N)
        lower, upper = (scores.gather(-1, number) for number in (index, (index + 1).clamp(max=last)))
        return (lower + share * (upper - lower)).to(pair.dtype)

    def cost(self, load: Load) -> Cost:
        width = self.shape.heads * self.shape.head_width
        return Cost(flops=2 * load.queries * width * (load.keys + self.table.num_embeddings))

    def position_limit(self) -> int | None:
        return None


def gates(q: Tensor, k: Tensor, pair: Pair) -> Tensor:
    """Return how much each key counts, at least in float32, 0 if the query does not see it: (B, H, T, S)."""
    scores = q @ k.transpose(-1, -2) * pair.scale
    counted = scores.to(torch.promote_types(scores.dtype, torch.float32)).sigmoid()
    return counted if pair.visible is None else counted.masked_fill(~pair.visible, 0.0)


def counts_to_query(gates: Tensor, k_positions: Tensor) -> Tensor:
    """Return the sum of the gates of all keys from each one on, in the order of positions: (B, H, T, S), (B|1, S).

    Indices may have another order. Positions of several documents mix, but a query has gates in one document only.
    """
    order = k_positions.argsort(dim=-1, stable=True)[:, None, None]  # (B|1, 1, 1, S)
    ranks = order.argsort(dim=-1)
    ordered = gates.gather(-1, order.expand_as(gates))
    counts = running_sums(ordered.flip(-1)).flip(-1)
    return counts.gather(-1, ranks.expand_as(gates))
