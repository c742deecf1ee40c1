"""Queries, keys and scores of attention heads, read while a model computes its attention weights."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple, final

import torch
from torch import Tensor, nn

from paribus.parts.attend import Attend, attention_weights
from paribus.parts.context import Context, LayerScoring, ScoreFunctions, scaled_dot_product, softmax
from paribus.parts.heads import ContentProjection, repeat_heads

NO_PRODUCT = "its score is not the product of a query and a key"
CHANGED = "its weights are changed after they are normalised"
NO_SCORES = "its weights are not those of one score for each query and key"


@final
class AttentionScores(NamedTuple):
    """Queries, keys and scores of the heads of a layer, as the model computed its attention weights from them."""

    q: Tensor  # (H, T, K): queries after their norm and rotation
    k: Tensor  # (H, S, K): for each query head the keys that it reads, after their norm and rotation
    scale: float  # factor of the dot products
    scores: Tensor  # (H, T, S): sums of all terms, from which weights are computed; -inf: hidden from the query
    sinks: Tensor | None = None  # (H,): score of attending to nothing
    has_other_terms: bool = False  # the scores have a bias or a soft cap, or are mapped otherwise
    is_softmax: bool = True  # the weights are the softmax of the scores

    @property
    def dot_products(self) -> Tensor:
        """Scaled dot products of queries and keys: (H, T, S)."""
        return scaled_dot_product(self.q, self.k, self.scale)

    @property
    def other_terms(self) -> Tensor:
        """Scores less the scaled dot products, such as a bias: (H, T, S); -inf where a key is hidden."""
        return self.scores - self.dot_products

    def products(self, head: int, query: int) -> Tensor:
        """Return the elementwise products of one query with each key: (S, K)."""
        return self.q[head, query] * self.k[head]

    def softmax(self) -> Tensor:
        """Return the softmax of the scores, less the share of a sink: (H, T, S); 0 for a query that sees no key."""
        scores_HTN = self.scores
        if self.sinks is not None:
            sinks_HT1 = self.sinks[:, None, None].expand(*scores_HTN.shape[:-1], 1)
            scores_HTN = torch.cat([scores_HTN, sinks_HT1], dim=-1)
        return scores_HTN.softmax(-1)[..., : self.scores.shape[-1]].nan_to_num(0.0)


@final
class _Reading(NamedTuple):
    """Scores of one call of an `Attend`, or why it has none, beside the weights that were captured."""

    attend: Attend
    weights: Tensor  # (B, H, T, S)
    scores: AttentionScores | str


@final
class ScoreReader:
    """Scores of each call of the `Attend`s of a topology, found by the captured weights that belong to them."""

    def __init__(self) -> None:
        self._readings: list[_Reading] = []

    def weigh_values(
        self,
        attend: Attend,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        heads: ContentProjection,
        ctx: Context,
        scoring: ScoreFunctions | None = None,
        bias: Tensor | None = None,
    ) -> Tensor:
        """Compute what `Attend.weigh_values` does, and store the scores: (B, H, T, K), … -> (B, H, T, V)."""
        mixed = Attend.weigh_values(attend, q, k, v, heads, ctx, scoring, bias)
        if ctx.captured is not None:
            scores = _read(attend, q, k, heads, ctx, scoring, bias)
            self._readings.append(_Reading(attend, ctx.captured["weights"], scores))
        return mixed

    def scores_of(self, weights: Tensor) -> AttentionScores | str:
        """Return the scores that gave these captured weights, (B, H, T, S), or a reason why there are none."""
        for reading in self._readings:
            if reading.weights is weights:
                return reading.scores
        for attend in dict.fromkeys(reading.attend for reading in self._readings):
            # A recurrent decoder attends with one query after the other.
            readings = [reading for reading in self._readings if reading.attend is attend]
            if _is_concatenation([reading.weights for reading in readings], weights):
                return _joined([reading.scores for reading in readings])
        return NO_SCORES


@contextmanager
def read_scores(topology: nn.Module) -> Iterator[ScoreReader]:
    """Read the scores of each `Attend` of a topology that runs within the block."""
    reader = ScoreReader()
    attends = [module for module in topology.modules() if isinstance(module, Attend)]
    for attend in attends:
        # Every variant calls this method. Forward hooks do not see it, and variants such as `mla` skip `forward`.
        vars(attend)["weigh_values"] = partial(reader.weigh_values, attend)
    try:
        yield reader
    finally:
        for attend in attends:
            del vars(attend)["weigh_values"]


def _read(
    attend: Attend,
    q: Tensor,
    k: Tensor,
    heads: ContentProjection,
    ctx: Context,
    scoring: ScoreFunctions | None,
    bias: Tensor | None,
) -> AttentionScores | str:
    functions = scoring or ScoreFunctions()
    if functions.compare is not scaled_dot_product:
        return NO_PRODUCT
    if functions.map_weights is not None:
        return CHANGED
    normalized: list[Tensor] = []

    def normalize(scores: Tensor, visible: Tensor) -> Tensor:
        normalized.append(scores)
        return functions.normalize(scores, visible)

    plan = ctx.plans[attend.plan]
    layer = attend.layer_scoring(heads, scoring, bias) or LayerScoring(None, heads.project)
    attention_weights(q, k, plan, layer._replace(functions=functions._replace(normalize=normalize)))
    dense: Any = plan.kernel_data  # a `DensePlan`: weights are captured on the eager kernel only
    scores = normalized[0][0, ..., : k.shape[-2]]  # without the column of a sink
    if dense.seen is not None:
        scores = scores.masked_fill(~dense.seen[0], float("-inf"))
    terms = (dense.bias, layer.bias, plan.soft_cap, functions.map_scores)
    return AttentionScores(
        q[0],
        repeat_heads(k, q.shape[1])[0],
        plan.scale,
        scores,
        None if layer.sinks is None else layer.sinks.detach(),
        has_other_terms=any(term is not None for term in terms),
        is_softmax=functions.normalize is softmax,
    )


def _is_concatenation(parts: list[Tensor], weights: Tensor) -> bool:
    shapes = {(*part.shape[:2], part.shape[3]) for part in parts}
    if shapes != {(*weights.shape[:2], weights.shape[3])}:
        return False
    whole = torch.cat(parts, dim=2)
    return whole.shape == weights.shape and torch.equal(whole, weights)


def _joined(parts: list[AttentionScores | str]) -> AttentionScores | str:
    """Return the scores of several queries with the same keys as one."""
    scored = [part for part in parts if not isinstance(part, str)]
    if len(scored) < len(parts):
        return next(part for part in parts if isinstance(part, str))
    q, scores = (torch.cat([getattr(part, name) for part in scored], dim=1) for name in ("q", "scores"))
    return scored[0]._replace(q=q, scores=scores)
