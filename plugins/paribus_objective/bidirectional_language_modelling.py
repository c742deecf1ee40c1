"""Bidirectional language modelling: predict the next and the previous token, each from one direction."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal, final

import torch
from torch import Tensor, nn

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
    Shape,
    Stream,
    TrainingExamples,
    Unembed,
    Vocabulary,
)
from paribus_objective import scoring
from paribus_objective.projection import OutputProjection

if TYPE_CHECKING:
    from torchmetrics import Metric

Direction = Literal["next", "previous"]


@final
class BidirectionalLanguageModelling(Objective):
    """Bidirectional language modelling: each position predicts the next token from the tokens up to its own, and the
    previous one from its own and those after it. "Deep Contextualized Word Representations" (Peters et al. 2018).

    The first half of a hidden state scores the next token (`loss`), the second half the previous one (`backward`), with
    one vocabulary layer for both. An example takes two tokens more than its length, so that each position has both
    labels. Padding and tokens of another document are not predicted. (B, T + 2) -> tokens (B, T), labels (B, T), twice.
    """

    traits: ClassVar[ObjectiveTraits] = {
        "corrupts": True,
        "visibility": "both",
        "parts": [],
        "segments": False,
        "needs": ["separate-directions"],
        "token_terms": ["loss", "backward"],
    }
    terms: ClassVar[Mapping[str, str]] = {"loss": "labels", "backward": "backward_labels"}

    def __init__(
        self,
        shape: Shape,
        vocabulary: Vocabulary,
        norm: Norms,
        *,
        bias: Annotated[bool, "add a bias for each entry of the vocabulary"] = True,
    ) -> None:
        super().__init__()
        self.classes = shape.vocabulary
        self.narrow = OutputProjection(replace(shape, width=shape.width // 2))
        self.bias = nn.Parameter(torch.zeros(shape.vocabulary)) if bias else None

    def text_length(self, length: int) -> int:
        return length + 2

    def corrupt(self, streams: Mapping[str, Stream], targets: Mapping[str, Tensor], draw: Draw) -> TrainingExamples:
        body = streams["body"]
        inputs = body.span(1, body.tokens.shape[1] - 1)
        labels = {"labels": _neighbours(body, 2), "backward_labels": _neighbours(body, 0)}
        return TrainingExamples({**streams, "body": inputs}, labels)

    def logits(self, hidden: Tensor, unembed: Unembed) -> Tensor:
        """(…, 2 K) -> (…, V): scores of the next token."""
        return self._scores(hidden.chunk(2, dim=-1)[0], unembed)

    def forward(self, run: ForwardPass) -> Mapping[str, LossTerm]:
        return {
            "loss": scoring.token_cross_entropy(*self._labelled(run, "next"), name="next"),
            "backward": scoring.token_cross_entropy(*self._labelled(run, "previous"), name="previous"),
        }

    def cost(self, load: Load) -> Cost:
        one = self.narrow.cost(load)
        return one + one

    def head_positions(self, length: int) -> int:
        return length

    def unembed_positions(self, length: int) -> int:
        return 2 * length

    def metrics(self) -> Mapping[str, Metric]:
        return {"accuracy": scoring.accuracy(self.classes), "backward_accuracy": scoring.accuracy(self.classes)}

    def update_metrics(self, run: ForwardPass, metrics: Mapping[str, Metric]) -> None:
        names: Mapping[str, Direction] = {"accuracy": "next", "backward_accuracy": "previous"}
        for name, direction in names.items():
            labelled = self._labelled(run, direction)
            predictions = scoring.label_scores(*labelled, name=direction).predictions
            scoring.update(metrics[name], predictions, labelled[3])

    def _labelled(
        self, run: ForwardPass, direction: Direction
    ) -> tuple[ForwardPass, scoring.Head, Tensor, Tensor, int]:
        """Return what scores the labels of one direction."""
        ahead, behind = run.hidden("body").chunk(2, dim=-1)
        hidden, labels = (ahead, "labels") if direction == "next" else (behind, "backward_labels")
        return run, lambda part: self._scores(part, run.unembed), hidden, run.targets[labels], self.classes

    def _scores(self, half: Tensor, unembed: Unembed) -> Tensor:
        """(…, K) -> (…, V)."""
        return unembed(self.narrow(half), self.bias)


def _neighbours(body: Stream, start: int) -> Tensor:
    """Return the tokens from `start` as labels of the tokens from 1; IGNORED in another document, and for padding."""
    length = body.tokens.shape[1] - 2
    labels = body.tokens[:, start : start + length].clone()  # a copy: a change to labels must not change the inputs
    if body.documents is None:
        return labels
    document, neighbour = body.documents[:, 1 : 1 + length], body.documents[:, start : start + length]
    return labels.masked_fill((document != neighbour) | (neighbour < 0), IGNORED)
