"""Span boundary objective: predict masked spans from their own positions and from the tokens around them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, ClassVar, final

import torch
from torch import Tensor, nn
from torch.nn import functional

from paribus import (
    IGNORED,
    Cost,
    Draw,
    ForwardPass,
    Load,
    LossTerm,
    Norms,
    Objective,
    ObjectiveTraits,
    Range,
    Role,
    Shape,
    Stream,
    TrainingExamples,
    Unembed,
    Vocabulary,
    WeightConverter,
)
from paribus_objective import masking, scoring, vocabulary_head
from paribus_objective.span_masking import Spans, SpanSelection, boundaries

if TYPE_CHECKING:
    from torchmetrics import Metric


@final
class SpanBoundaryObjective(Objective, WeightConverter):
    """Span boundary objective: each masked token is predicted by two heads, from its own hidden state, as in `mlm`, and
    from those of the tokens before and after its span and its offset in the span. "SpanBERT" (Joshi et al. 2020).

    Both heads use the same masks, so this is one objective with two terms. A span at an end of its document has one
    neighbour only, and no second term. (B, T, D) -> (B, N, V), twice.
    """

    traits: ClassVar[ObjectiveTraits] = {
        "corrupts": True,
        "visibility": "both",
        "parts": [],
        "segments": False,
        "needs": ["mask"],
        "token_terms": ["loss", "boundary"],
    }
    roles: ClassVar[Mapping[str, Role]] = vocabulary_head.ROLES
    terms: ClassVar[Mapping[str, str]] = {"loss": "labels", "boundary": "boundary_labels"}
    head_positions = masking.head_positions
    logits = vocabulary_head.logits
    scored_hidden = vocabulary_head.masked_hidden
    fill_logits = vocabulary_head.fill_logits
    convert_weights = vocabulary_head.convert_weights

    def __init__(
        self,
        shape: Shape,
        vocabulary: Vocabulary,
        norm: Norms,
        *,
        rate: Annotated[float, "share of the text's tokens that are predicted", Range(above=0, high=0.5)] = 0.15,
        mask: masking.Mask = 0.8,
        random: masking.Random = 0.1,
        spans: Spans = Spans(max_length=10, stop_probability=0.2, joint_replacement=True),
        position_width: Annotated[int, "width of the embeddings of the offset in a span", Range(1)] = 200,
    ) -> None:
        super().__init__()
        if spans.whole_words:
            raise ValueError("expected `spans.whole_words` false: offsets in a span are counted in tokens")
        self.classes = shape.vocabulary
        self.masking = masking.Masking(vocabulary, rate, mask, random, SpanSelection(spans, rate))
        self.narrow, self.dense, self.norm, self.bias = vocabulary_head.build(shape, norm)
        self.boundary = Boundary(shape, norm, spans.max_length, position_width)

    def corrupt(self, streams: Mapping[str, Stream], targets: Mapping[str, Tensor], draw: Draw) -> TrainingExamples:
        masked = masking.corrupt(self, streams, targets, draw)
        pick, labels = masked.targets["pick"], masked.targets["labels"]
        boundary = boundaries(pick.numpy(), labels.numpy() == IGNORED, masked.streams["body"])
        boundary_targets = {
            "left": torch.from_numpy(boundary.left),
            "right": torch.from_numpy(boundary.right),
            "offset": torch.from_numpy(boundary.offset),
            "boundary_labels": labels.masked_fill(torch.from_numpy(boundary.missing), IGNORED),
        }
        return TrainingExamples(masked.streams, {**masked.targets, **boundary_targets})

    def forward(self, run: ForwardPass) -> Mapping[str, LossTerm]:
        return {
            "loss": vocabulary_head.token_loss(self, run),
            "boundary": scoring.token_cross_entropy(*self._boundary(run), name="boundary_scores"),
        }

    def cost(self, load: Load) -> Cost:
        return vocabulary_head.cost(self, load) + self.boundary.cost(load)

    def unembed_positions(self, length: int) -> int:
        return 2 * self.head_positions(length)

    def metrics(self) -> Mapping[str, Metric]:
        return {"accuracy": scoring.accuracy(self.classes), "boundary_accuracy": scoring.accuracy(self.classes)}

    def update_metrics(self, run: ForwardPass, metrics: Mapping[str, Metric]) -> None:
        scoring.update(metrics["accuracy"], vocabulary_head.token_predictions(self, run), run.targets["labels"])
        boundary_predictions = scoring.label_scores(*self._boundary(run), name="boundary_scores").predictions
        scoring.update(metrics["boundary_accuracy"], boundary_predictions, run.targets["boundary_labels"])

    def _boundary(self, run: ForwardPass) -> tuple[ForwardPass, scoring.Head, Tensor, Tensor, int]:
        """Return what scores the labels from the tokens around each span."""
        left, right = (masking.gather(run.hidden(), run.targets[side]) for side in ("left", "right"))
        hidden = self.boundary.join(left, right, run.targets["offset"])
        return run, lambda part: self.boundary(part, run.unembed), hidden, run.targets["boundary_labels"], self.classes


@final
class Boundary(nn.Module):
    """Two layers, each with GELU and a norm, on the tokens around a span and an embedding of the offset in it.

    `join` returns its input: (B, N, D), (B, N, D), (B, N) -> (B, N, 2 D + position_width) -> (B, N, V).
    """

    roles: ClassVar[Mapping[str, Role]] = {
        "places.weight": "embedding",
        "inner.weight": "head",
        "outer.weight": "head",
        "bias": "bias",
    }

    def __init__(self, shape: Shape, norm: Norms, max_length: int, position_width: int) -> None:
        super().__init__()
        self.places = nn.Embedding(max_length, position_width)
        self.inner = nn.Linear(2 * shape.width + position_width, shape.width)
        self.outer = nn.Linear(shape.width, shape.embedding_width)
        self.norms = nn.ModuleDict({"inner": norm(), "outer": norm(shape.embedding_width)})
        self.bias = nn.Parameter(torch.zeros(shape.vocabulary))

    def join(self, left: Tensor, right: Tensor, offset: Tensor) -> Tensor:
        return torch.cat([left, right, self.places(offset)], dim=-1)

    def forward(self, joined: Tensor, unembed: Unembed) -> Tensor:
        h = self.norms["inner"](functional.gelu(self.inner(joined)))
        return unembed(self.norms["outer"](functional.gelu(self.outer(h))), self.bias)

    def cost(self, load: Load) -> Cost:
        return Cost(flops=2 * load.head_positions * (self.inner.weight.numel() + self.outer.weight.numel()))
