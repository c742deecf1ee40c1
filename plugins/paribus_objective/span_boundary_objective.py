"""Hide spans of a text, and predict them from their own rows, and again from the rows around them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, ClassVar, final

import torch
from torch import Tensor, nn
from torch.nn import functional

from paribus import (
    IGNORED,
    ConvertedTensor,
    Cost,
    Draw,
    ForwardPass,
    Load,
    LossTerm,
    Norms,
    Objective,
    Range,
    Role,
    Shape,
    Stream,
    TrainingExamples,
    Traits,
    Unembed,
    Vocabulary,
    WeightConverter,
)
from paribus_objective import masking, scoring, vocabulary_head
from paribus_objective.span_masking import SpanPicking, Spans, borders

if TYPE_CHECKING:
    from torchmetrics import Metric


@final
class SpanBoundaryObjective(Objective, WeightConverter):
    """Each hidden token is predicted by two heads: from its own row, as `mlm` does, and from the rows before and behind
    its span with its place in that: "SpanBERT" (Joshi et al. 2020).

    Both read what one draw hid, so this is one objective of two terms. A span at an end of its document has but one row
    beside it, and no second term. (B, T, D) -> (B, N, V), twice.
    """

    traits: ClassVar[Traits] = {"corrupts": True, "sight": "both", "parts": [], "segments": False, "needs": ["mask"]}
    roles: ClassVar[Mapping[str, Role]] = vocabulary_head.ROLES
    terms: ClassVar[Mapping[str, str]] = {"loss": "labels", "boundary": "framed"}

    def __init__(
        self,
        shape: Shape,
        vocabulary: Vocabulary,
        norm: Norms,
        *,
        rate: Annotated[float, "share of a text's tokens that are predicted", Range(above=0, high=0.5)] = 0.15,
        mask: masking.Mask = 0.8,
        random: masking.Random = 0.1,
        spans: Spans = Spans(longest=10, ends=0.2, together=True),
        places: Annotated[int, "width of the vectors that tell the places of a span apart", Range(1)] = 200,
    ) -> None:
        super().__init__()
        self.classes = shape.vocabulary
        self.masking = masking.Masking(vocabulary, rate, mask, random, SpanPicking(spans, rate))
        self.narrow, self.dense, self.norm, self.bias = vocabulary_head.made(shape, norm)
        self.boundary = Boundary(shape, norm, spans.longest, places)

    def corrupt(self, streams: Mapping[str, Stream], targets: Mapping[str, Tensor], draw: Draw) -> TrainingExamples:
        body, pick, labels = self.masking(streams["body"], self.head_positions(streams["body"].tokens.shape[1]), draw)
        found = borders(pick.numpy(), labels.numpy() == IGNORED, body)
        told = {
            "before": torch.from_numpy(found.before),
            "behind": torch.from_numpy(found.behind),
            "place": torch.from_numpy(found.place),
            "framed": labels.masked_fill(torch.from_numpy(found.missing), IGNORED),
        }
        return TrainingExamples({**streams, "body": body}, {"pick": pick, "labels": labels, **told})

    def logits(self, hidden: Tensor, unembed: Unembed) -> Tensor:
        """The head that a token's own row goes through."""
        return vocabulary_head.logits(self, hidden, unembed)

    def forward(self, run: ForwardPass) -> Mapping[str, LossTerm]:
        return {
            "loss": scoring.cross_entropy(self._logits(run), run.targets["labels"]),
            "boundary": scoring.cross_entropy(self._framed(run), run.targets["framed"]),
        }

    def fill_logits(self, run: ForwardPass) -> Tensor:
        return self._logits(run)

    def cost(self, load: Load) -> Cost:
        return vocabulary_head.cost(self, load) + self.boundary.cost(load)

    def head_positions(self, length: int) -> int:
        return self.masking.most(length)

    def unembed_positions(self, length: int) -> int:
        return 2 * self.head_positions(length)

    def metrics(self) -> Mapping[str, Metric]:
        return {"accuracy": scoring.accuracy(self.classes), "boundary_accuracy": scoring.accuracy(self.classes)}

    def update_metrics(self, run: ForwardPass, metrics: Mapping[str, Metric]) -> None:
        scoring.update(metrics["accuracy"], self._logits(run), run.targets["labels"])
        scoring.update(metrics["boundary_accuracy"], self._framed(run), run.targets["framed"])

    def _logits(self, run: ForwardPass) -> Tensor:
        return run.cached("logits", lambda: self.logits(masking.rows(run.hidden(), run.targets["pick"]), run.unembed))

    def _framed(self, run: ForwardPass) -> Tensor:
        def made() -> Tensor:
            before, behind = (masking.rows(run.hidden(), run.targets[side]) for side in ("before", "behind"))
            scores: Tensor = self.boundary(before, behind, run.targets["place"], run.unembed)
            return scores

        return run.cached("framed", made)

    def convert_weights(self, other: nn.Module) -> Mapping[str, ConvertedTensor]:
        return vocabulary_head.adopted(self, other)


@final
class Boundary(nn.Module):
    """Two layers, each with GELU and a norm, on the rows around a span and a vector of the place in it.

    (B, N, D), (B, N, D), (B, N) -> (B, N, V).
    """

    roles: ClassVar[Mapping[str, Role]] = {
        "places.weight": "embedding",
        "inner.weight": "head",
        "outer.weight": "head",
        "bias": "bias",
    }

    def __init__(self, shape: Shape, norm: Norms, longest: int, width: int) -> None:
        super().__init__()
        self.places = nn.Embedding(longest, width)
        self.inner = nn.Linear(2 * shape.width + width, shape.width)
        self.outer = nn.Linear(shape.width, shape.embedding_width)
        self.norms = nn.ModuleDict({"inner": norm(), "outer": norm(shape.embedding_width)})
        self.bias = nn.Parameter(torch.zeros(shape.vocabulary))

    def forward(self, before: Tensor, behind: Tensor, place: Tensor, unembed: Unembed) -> Tensor:
        h = torch.cat([before, behind, self.places(place)], dim=-1)
        h = self.norms["inner"](functional.gelu(self.inner(h)))
        return unembed(self.norms["outer"](functional.gelu(self.outer(h))), self.bias)

    def cost(self, load: Load) -> Cost:
        return Cost(flops=2 * load.head_positions * (self.inner.weight.numel() + self.outer.weight.numel()))
