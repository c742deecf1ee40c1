"""Hide some of the tokens, and predict them from what is left and from where they stood."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, ClassVar, final

import torch
from torch import Tensor, nn

from paribus import (
    Cost,
    Draw,
    Formed,
    Load,
    Norms,
    Objective,
    Range,
    Role,
    Run,
    Shape,
    Stream,
    Term,
    Traits,
    Unembed,
    Vocabulary,
    rows_of,
)
from paribus_objective import masking, scoring
from paribus_objective.span_masking import Spans, picking

if TYPE_CHECKING:
    from torchmetrics import Metric


@final
class EnhancedMaskDecoder(Objective):
    """Hidden tokens are predicted by rows that are told where they are, absolutely, and only then: "DeBERTa" (He et al.
    2021), section 3.2.

    To what the last layer reads of each, a vector of its place is added; the sum goes through that layer, twice in the
    authors' code, over what the layer read, and what comes of it meets the head. So do the rows that are hidden, and no
    others: the head alone (`logits`) knows of no place. (B, N, D) -> (B, N, V).
    """

    traits: ClassVar[Traits] = {
        "corrupts": True,
        "sight": "both",
        "parts": [],
        "segments": False,
        "needs": ["mask", "last-layer"],
    }
    roles: ClassVar[Mapping[str, Role]] = {
        "dense.weight": "head",
        "dense.bias": "bias",
        "bias": "bias",
        "places.weight": "embedding",
    }

    def __init__(
        self,
        shape: Shape,
        vocabulary: Vocabulary,
        norm: Norms,
        *,
        rate: Annotated[float, "share of a text's tokens that are predicted", Range(above=0, high=1)] = 0.15,
        mask: Annotated[float, "share of these that the mask token stands in for", Range(0, 1)] = 0.8,
        random: Annotated[float, "share of these that a random token stands in for", Range(0, 1)] = 0.1,
        spans: Spans = Spans(),
        steps: Annotated[int, "how often rows that know their place go through the last layer", Range(1)] = 2,
    ) -> None:
        super().__init__()
        self.classes, self.last = shape.vocabulary, shape.length - 1
        self.masking = masking.Masking(vocabulary, rate, mask, random, picking(spans, rate))
        self.again = steps
        self.places = nn.Embedding(shape.length, shape.width)
        self.dense = nn.Linear(shape.width, shape.embedded)
        self.norm = norm(shape.embedded)
        self.bias = nn.Parameter(torch.zeros(shape.vocabulary))

    def corrupt(self, streams: Mapping[str, Stream], targets: Mapping[str, Tensor], draw: Draw) -> Formed:
        body, pick, labels = self.masking(streams["body"], self.picks(streams["body"].tokens.shape[1]), draw)
        return Formed({**streams, "body": body}, {"pick": pick, "labels": labels})

    def logits(self, hidden: Tensor, unembed: Unembed) -> Tensor:
        return unembed(self.norm(nn.functional.gelu(self.dense(hidden))), self.bias)

    def decoded(self, run: Run) -> Tensor:
        """(B, N, D): what is hidden, as it comes out behind the last layer once it knows its place."""
        pick = run.targets["pick"]
        positions = rows_of(run.streams["body"]).positions.expand(pick.shape[0], -1).gather(1, pick)
        placed = self.places(positions.clamp(0, self.last))  # padding may stand beyond either end
        return run.again(masking.rows(run.read(), pick) + placed, pick, self.again)

    def forward(self, run: Run) -> Mapping[str, Term]:
        return {"loss": scoring.cross_entropy(self._logits(run), run.targets["labels"])}

    def cost(self, load: Load) -> Cost:
        return Cost(flops=2 * load.picks * self.dense.weight.numel())

    def picks(self, length: int) -> int:
        return min(length, max(1, math.ceil(self.masking.rate * length)))

    def metrics(self) -> Mapping[str, Metric]:
        return {"accuracy": scoring.accuracy(self.classes)}

    def observe(self, run: Run, metrics: Mapping[str, Metric]) -> None:
        scoring.update(metrics["accuracy"], self._logits(run), run.targets["labels"])

    def _logits(self, run: Run) -> Tensor:
        return run.once("logits", lambda: self.logits(self.decoded(run), run.unembed))
