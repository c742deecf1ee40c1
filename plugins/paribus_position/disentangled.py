"""The position `disentangled`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, ClassVar, Literal, final

import torch
from torch import Tensor, nn
from torch.nn import functional

from paribus import Cost, Load, Pair, Position, Range, Role, Shape, Traits


@final
class Disentangled(Position):
    """Scores what a row says against how far others are, both ways: "DeBERTa" (He et al. 2021), section 3.1.

    To q·k it adds the query against a key for the distance, and the key against a query for the distance; all share a
    scale of 1 / sqrt(3 K). The stack has one table of distances, which layers project as they do their rows
    ("DeBERTaV3", He et al. 2023) or by projections for it alone (the first DeBERTa). As in the authors' code, and not
    in equation 4, both look up i - j.
    """

    traits: ClassVar[Traits] = {"moments": ["bias"], "bias": "content", "owner": "stack", "terms": 3}
    roles: ClassVar[Mapping[str, Role]] = {"table.weight": "embedding", "norm.weight": "gain"}

    def __init__(
        self,
        shape: Shape,
        *,
        distance: Annotated[int, "from how far on all rows count as equally far", Range(1)] = 512,
        buckets: Annotated[
            int | None, "vectors to each side, which far rows share the more (v3: 256); null: `distance`", Range(4)
        ] = None,
        scores: Annotated[
            Literal["both", "c2p", "p2c"], "content against distance, distance against content, or both"
        ] = "both",
        apart: Annotated[bool, "whether layers have projections for the table alone (v1), and not their rows'"] = False,
        normed: Annotated[bool, "whether the table is normed before it is projected (v3: yes)"] = False,
    ) -> None:
        super().__init__()
        if buckets is not None and distance - 1 <= buckets // 2:
            raise ValueError(f"`distance` ({distance}) must be at least {buckets // 2 + 2}, half of `buckets` and two")
        self.heads, self.head_width, self.width = shape.heads, shape.head_width, shape.width
        self.distance, self.buckets = distance, buckets
        self.scores, self.apart = scores, apart
        self.dropout = shape.dropout
        self.table = nn.Embedding(2 * (buckets or distance), shape.width)
        self.norm = nn.LayerNorm(shape.width, eps=1e-7) if normed else None

    def own(self, shape: Shape) -> Projections | None:
        return Projections(shape, self.scores) if self.apart else None

    def terms(self) -> int:
        return 3 if self.scores == "both" else 2

    def bias(self, pair: Pair) -> Tensor:
        """(B, H, T, S)."""
        assert pair.q is not None, "a bias that reads content is shown it"
        assert pair.k is not None, "a bias that reads content is shown it"
        queries, keys = self._projected(pair)  # (H, N, K) each
        index = self.rows(pair.q_positions.unsqueeze(-1) - pair.k_positions.unsqueeze(-2)).unsqueeze(1)
        scores = []
        if keys is not None:
            scores.append(picked(pair.q, keys, index))
        if queries is not None:
            scores.append(picked(pair.k, queries, index.transpose(-1, -2)).transpose(-1, -2))
        return (sum(scores[1:], scores[0]) * pair.scale).to(pair.dtype)

    def _projected(self, pair: Pair) -> tuple[Tensor | None, Tensor | None]:
        """The table as queries and as keys, where they are scored: (H, N, K) each."""
        table = self.table.weight if self.norm is None else self.norm(self.table.weight)
        if self.dropout and self.training:
            table = functional.dropout(table, self.dropout)
        if isinstance(pair.own, Projections):
            made: tuple[Tensor | None, Tensor | None] = pair.own(table)
            return made
        assert pair.project is not None, "a bias that reads content is given the projections of its layer"
        queries, keys = pair.project(table)
        return (queries if self.scores != "c2p" else None), (keys if self.scores != "p2c" else None)

    def rows(self, distances: Tensor) -> Tensor:
        """Which row of the table tells of each distance, the first of those most ahead."""
        size = self.buckets or self.distance
        if self.buckets is not None:
            half = self.buckets // 2
            beyond = (distances.abs().clamp(min=half).double() / half).log()
            last = torch.tensor((self.distance - 1) / half, dtype=torch.float64, device=distances.device).log()
            far = (beyond / last * (half - 1)).ceil().long() + half  # one log for both: the last is exactly the last
            distances = torch.where(distances.abs() <= half, distances, far * distances.sign())
        return distances.clamp(-size, size - 1) + size

    def cost(self, load: Load) -> Cost:
        """With the table's projections, which a batch shares: of one example they are all its own."""
        projected = 2 if self.scores == "both" or not self.apart else 1
        table, width = self.table.num_embeddings, self.heads * self.head_width
        met = {"both": load.queries + load.keys, "c2p": load.queries, "p2c": load.keys}[self.scores]
        return Cost(flops=2 * table * width * (projected * self.width + met))

    def reach(self) -> int | None:
        return None


@final
class Projections(nn.Module):
    """A layer's projections of the table alone; as published, that of its queries has a bias, and that of keys none."""

    roles: ClassVar[Mapping[str, Role]] = {"query.weight": "query", "key.weight": "key"}

    def __init__(self, shape: Shape, scores: str) -> None:
        super().__init__()
        self.heads = shape.heads
        width = shape.heads * shape.head_width
        self.query = nn.Linear(shape.width, width) if scores != "c2p" else None
        self.key = nn.Linear(shape.width, width, bias=False) if scores != "p2c" else None

    def forward(self, table: Tensor) -> tuple[Tensor | None, Tensor | None]:
        """(N, D) -> (H, N, K) each."""
        queries, keys = (None if project is None else self._split(project(table)) for project in (self.query, self.key))
        return queries, keys

    def _split(self, x: Tensor) -> Tensor:
        return x.view(x.shape[0], self.heads, -1).transpose(0, 1)


def picked(x: Tensor, table: Tensor, index: Tensor) -> Tensor:
    """(B, H, T, K), (H, N, K), (B|1, 1, T, S) -> (B, H, T, S): each row against the whole table, and what it needs."""
    met = torch.einsum("bhtk,hnk->bhtn", x, table.to(x.dtype))
    return met.gather(-1, index.expand(*met.shape[:2], -1, -1))
