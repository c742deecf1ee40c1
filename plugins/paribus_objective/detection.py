"""Put random tokens into a text, and tell which they are."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, ClassVar, final

from torch import Tensor

from paribus import (
    IGNORED,
    Cost,
    Draw,
    ForwardPass,
    Load,
    LossTerm,
    Norms,
    Objective,
    Range,
    Shape,
    Stream,
    Tokens,
    TrainingExamples,
    Traits,
    Unembed,
    Vocabulary,
)
from paribus_objective import detecting, masking
from paribus_objective.detecting import Detector

if TYPE_CHECKING:
    from torchmetrics import Metric


@final
class Detection(Objective):
    """Some tokens give way to random ones, and of all tokens it is told which: "ELECTRA" (Clark et al. 2020), with a
    generator that knows nothing.

    It is the head of a discriminator that stands alone. (B, T, D) -> (B, T), for every row but padding.
    """

    traits: ClassVar[Traits] = {"corrupts": True, "sight": "both", "parts": [], "segments": False, "needs": ["mask"]}

    def __init__(
        self,
        shape: Shape,
        vocabulary: Vocabulary,
        norm: Norms,
        *,
        rate: Annotated[float, "share of a text's tokens that are replaced", Range(above=0, high=1)] = 0.15,
        first: Annotated[bool, "whether the first row is added to each, and both normed (DeBERTa v3: yes)"] = False,
    ) -> None:
        super().__init__()
        self.masking = masking.Masking(vocabulary, rate, mask=0.0, random=1.0)
        self.detector = Detector(shape.width, norm if first else None)

    def corrupt(self, streams: Mapping[str, Stream], targets: Mapping[str, Tensor], draw: Draw) -> TrainingExamples:
        body = streams["body"]
        length = body.tokens.shape[1]
        shown, _, _ = self.masking(body, min(length, max(1, math.ceil(self.masking.rate * length))), draw)
        return TrainingExamples({**streams, "body": shown}, {"labels": detecting.replaced(body, shown.tokens)})

    def logits(self, hidden: Tensor, unembed: Unembed) -> Tensor:
        scores: Tensor = self.detector(hidden)
        return scores

    def forward(self, run: ForwardPass) -> Mapping[str, LossTerm]:
        return {"loss": detecting.loss(self._told(run), run.targets["labels"])}

    def cost(self, load: Load) -> Cost:
        return self.detector.cost(load.head_positions)

    def head_positions(self, length: int) -> int:
        return length

    def unigram_loss(self, train: Tokens, targets: Mapping[str, Tensor]) -> float:
        share = self.masking.rate * (1 - 1 / len(self.masking.words))  # a random token may be the text's own
        labels = targets["labels"][targets["labels"] != IGNORED]
        replaced = float((labels == 1).double().mean())
        return -replaced * math.log(share) - (1 - replaced) * math.log(1 - share)

    def metrics(self) -> Mapping[str, Metric]:
        return detecting.metrics()

    def update_metrics(self, run: ForwardPass, metrics: Mapping[str, Metric]) -> None:
        detecting.update(metrics, self._told(run), run.targets["labels"])

    def _told(self, run: ForwardPass) -> Tensor:
        return run.cached("logits", lambda: self.logits(run.hidden(), run.unembed)).squeeze(-1)
