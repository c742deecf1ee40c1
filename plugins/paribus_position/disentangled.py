"""Disentangled relative positions (`disentangled`), DeBERTa's."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, ClassVar, Literal, final

import torch
from torch import Tensor, nn
from torch.nn import functional

from paribus import Cost, Load, Pair, Position, PositionTraits, Range, Role, Shape


@final
class Disentangled(Position):
    """Disentangled attention to content and relative position (He et al. 2021).

    "DeBERTa: Decoding-enhanced BERT with Disentangled Attention", section 3.1. To q·k it adds the query times a key for
    the distance, and the key times a query for the distance; all terms are scaled by 1 / sqrt(3 K). The stack has one
    table of distances. Layers project it with their query and key projections ("DeBERTaV3", He et al. 2023) or with
    separate ones (the first DeBERTa). Both terms look up i - j, as in the authors' code and unlike equation 4.
    """

    traits: ClassVar[PositionTraits] = {"hooks": ["bias"], "bias": "content", "owner": "stack", "score_terms": 3}
    roles: ClassVar[Mapping[str, Role]] = {"table.weight": "embedding", "norm.weight": "gain"}

    def __init__(
        self,
        shape: Shape,
        *,
        distance: Annotated[int, "distance beyond which all positions share one vector", Range(1)] = 512,
        buckets: Annotated[
            int | None,
            "vectors on each side, shared by ranges of larger distances (v3: 256); null: `distance`",
            Range(4),
        ] = None,
        scores: Annotated[
            Literal["both", "c2p", "p2c"], "c2p: content to position; p2c: position to content; or both"
        ] = "both",
        separate_projections: Annotated[
            bool, "project the table with parameters of its own (v1), not with those of the tokens"
        ] = False,
        normed: Annotated[bool, "normalise the table before its projection (v3: yes)"] = False,
    ) -> None:
        super().__init__()
        if buckets is not None and distance - 1 <= buckets // 2:
            raise ValueError(f"`distance` must be at least {buckets // 2 + 2} (`buckets` / 2 + 2), got {distance}")
        self.heads, self.head_width, self.width = shape.heads, shape.head_width, shape.width
        self.distance, self.buckets = distance, buckets
        self.scores, self.separate_projections = scores, separate_projections
        self.dropout = shape.dropout
        self.table = nn.Embedding(2 * (buckets or distance), shape.width)
        self.norm = nn.LayerNorm(shape.width, eps=1e-7) if normed else None

    def layer_part(self, shape: Shape) -> Projections | None:
        return Projections(shape, self.scores) if self.separate_projections else None

    def score_terms(self) -> int:
        return 3 if self.scores == "both" else 2

    def bias(self, pair: Pair) -> Tensor:
        """(B, H, T, S)."""
        assert pair.q is not None, "a content bias needs queries and keys"
        assert pair.k is not None, "a content bias needs queries and keys"
        queries, keys = self._project_table(pair)  # (H, N, K) each
        index = self.table_index(pair.q_positions.unsqueeze(-1) - pair.k_positions.unsqueeze(-2)).unsqueeze(1)
        scores = []
        if keys is not None:
            scores.append(gather_scores(pair.q, keys, index))
        if queries is not None:
            scores.append(gather_scores(pair.k, queries, index.transpose(-1, -2)).transpose(-1, -2))
        return (sum(scores[1:], scores[0]) * pair.scale).to(pair.dtype)

    def _project_table(self, pair: Pair) -> tuple[Tensor | None, Tensor | None]:
        """Return the table projected as queries and as keys, (H, N, K) each, None for a side that is not scored."""
        table = self.table.weight if self.norm is None else self.norm(self.table.weight)
        if self.dropout and self.training:
            table = functional.dropout(table, self.dropout)
        if isinstance(pair.position_part, Projections):
            projected: tuple[Tensor | None, Tensor | None] = pair.position_part(table)
            return projected
        assert pair.project is not None, "a content bias needs the layer's projections"
        queries, keys = pair.project(table)
        return (queries if self.scores != "c2p" else None), (keys if self.scores != "p2c" else None)

    def table_index(self, distances: Tensor) -> Tensor:
        """Return the table index of each distance, 0 for keys furthest ahead."""
        size = self.buckets or self.distance
        if self.buckets is not None:
            half = self.buckets // 2
            log_distance = (distances.abs().clamp(min=half).double() / half).log()
            log_limit = torch.full((), (self.distance - 1) / half, dtype=torch.float64, device=distances.device).log()
            bucket = (
                log_distance / log_limit * (half - 1)
            ).ceil().long() + half  # both in float64, so that the largest distance is in the last bucket
            distances = torch.where(distances.abs() <= half, distances, bucket * distances.sign())
        return distances.clamp(-size, size - 1) + size

    def cost(self, load: Load) -> Cost:
        """Return the cost for a single example, including the table's projections, which a batch shares."""
        projected = 2 if self.scores == "both" or not self.separate_projections else 1
        table, width = self.table.num_embeddings, self.heads * self.head_width
        scored_tokens = {"both": load.queries + load.keys, "c2p": load.queries, "p2c": load.keys}[self.scores]
        return Cost(flops=2 * table * width * (projected * self.width + scored_tokens))

    def position_limit(self) -> int | None:
        return None


@final
class Projections(nn.Module):
    """Separate projections of the table in one layer: as published, with a bias for queries and none for keys."""

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


def gather_scores(x: Tensor, table: Tensor, index: Tensor) -> Tensor:
    """Score each token with the whole table and gather: (B, H, T, K), (H, N, K), (B|1, 1, T, S) -> (B, H, T, S)."""
    scores = torch.einsum("bhtk,hnk->bhtn", x, table.to(x.dtype))
    return scores.gather(-1, index.expand(*scores.shape[:2], -1, -1))
