"""Random token detection: classify which tokens were replaced by random ones."""

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
    ObjectiveTraits,
    Range,
    Shape,
    Stream,
    Tokens,
    TrainingExamples,
    Unembed,
    Vocabulary,
)
from paribus_objective import detector, masking

if TYPE_CHECKING:
    from torchmetrics import Metric


@final
class Detection(Objective):
    """Random token detection: some tokens are replaced by random ones, and every token is classified as replaced or
    not. "ELECTRA" (Clark et al. 2020), without a trained generator.

    This is the head of a discriminator without its generator. (B, T, D) -> (B, T), for every token except padding.
    """

    traits: ClassVar[ObjectiveTraits] = {
        "corrupts": True,
        "visibility": "both",
        "parts": [],
        "segments": False,
        "needs": ["mask"],
    }

    def __init__(
        self,
        shape: Shape,
        vocabulary: Vocabulary,
        norm: Norms,
        *,
        rate: Annotated[float, "share of the text's tokens that are replaced", Range(above=0, high=1)] = 0.15,
        add_first_token: Annotated[bool, "add the first token to each, and normalize (DeBERTa v3: yes)"] = False,
    ) -> None:
        super().__init__()
        self.masking = masking.Masking(vocabulary, rate, mask=0.0, random=1.0)
        self.detector = detector.Detector(shape.width, norm if add_first_token else None)

    def corrupt(self, streams: Mapping[str, Stream], targets: Mapping[str, Tensor], draw: Draw) -> TrainingExamples:
        body = streams["body"]
        replaced, _, _ = self.masking(body, self.masking.slots(body.tokens.shape[1]), draw)
        return TrainingExamples(
            {**streams, "body": replaced}, {"labels": detector.replaced_labels(body, replaced.tokens)}
        )

    def logits(self, hidden: Tensor, unembed: Unembed) -> Tensor:
        scores: Tensor = self.detector(hidden)
        return scores

    def forward(self, run: ForwardPass) -> Mapping[str, LossTerm]:
        return {"loss": detector.loss(self._scores(run), run.targets["labels"])}

    def cost(self, load: Load) -> Cost:
        return self.detector.cost(load.head_positions)

    def head_positions(self, length: int) -> int:
        return length

    def unigram_loss(self, train: Tokens, targets: Mapping[str, Tensor]) -> float:
        """Return the loss of predicting the share of replaced tokens."""
        share = self.masking.rate * (1 - 1 / len(self.masking.words))  # a random token may equal the original
        labels = targets["labels"][targets["labels"] != IGNORED]
        replaced = float((labels == 1).double().mean())
        return -replaced * math.log(share) - (1 - replaced) * math.log(1 - share)

    def metrics(self) -> Mapping[str, Metric]:
        return detector.metrics()

    def update_metrics(self, run: ForwardPass, metrics: Mapping[str, Metric]) -> None:
        detector.update(metrics, self._scores(run), run.targets["labels"])

    def _scores(self, run: ForwardPass) -> Tensor:
        return run.cached("logits", lambda: self.logits(run.hidden(), run.unembed)).squeeze(-1)
