"""Multi-token prediction: predict the next token, and with a second head a token further ahead."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, ClassVar, final

import torch
from torch import Tensor, nn

from paribus import (
    IGNORED,
    Cost,
    Draw,
    ForwardPass,
    GenerationTarget,
    Load,
    LossTerm,
    Norms,
    Objective,
    ObjectiveTraits,
    Prompt,
    Range,
    Role,
    Shape,
    Stream,
    TrainingExamples,
    Unembed,
    Vocabulary,
    hookimpl,
)

if TYPE_CHECKING:
    from torchmetrics import Metric


@final
class MultiToken(Objective):
    """Multi-token prediction: each position predicts the next token and, with a head of its own, the token `ahead`
    positions later. "Better & Faster Large Language Models via Multi-token Prediction" (Gloeckle et al. 2024).

    An example takes `ahead` tokens more than its length, so that the last position has both labels. Padding and tokens
    of another document are not predicted. (B, T + ahead) -> tokens, labels and further labels, (B, T) each.
    """

    traits: ClassVar[ObjectiveTraits] = {
        "corrupts": True,
        "visibility": "past",
        "parts": [],
        "segments": False,
        "needs": [],
        "token_terms": ["loss", "further"],
    }
    terms: ClassVar[Mapping[str, str]] = {"loss": "labels", "further": "further_labels"}
    roles: ClassVar[Mapping[str, Role]] = {"narrow.weight": "head", "dense.weight": "head", "dense.bias": "bias"}

    def __init__(
        self,
        shape: Shape,
        vocabulary: Vocabulary,
        norm: Norms,
        *,
        ahead: Annotated[int, "distance of the second predicted token", Range(2, 64)] = 2,
        weight: Annotated[float, "weight of the second loss", Range(above=0, high=1)] = 0.3,
    ) -> None:
        super().__init__()
        self.classes, self.ahead, self.weight = shape.vocabulary, ahead, weight
        self.end_of_text = vocabulary.end_token
        is_narrow = shape.embedding_width != shape.width  # a factorised table is narrower than the stream
        self.narrow = nn.Linear(shape.width, shape.embedding_width, bias=False) if is_narrow else None
        self.dense = nn.Linear(shape.width, shape.embedding_width)
        self.norm = norm(shape.embedding_width)

    def text_length(self, length: int) -> int:
        return length + self.ahead

    def corrupt(self, streams: Mapping[str, Stream], targets: Mapping[str, Tensor], draw: Draw) -> TrainingExamples:
        body = streams["body"]
        length = body.tokens.shape[1] - self.ahead
        inputs = Stream(*(None if values is None else values[:, :length] for values in body))  # type: ignore[arg-type]
        labels = {"labels": shifted(body, 1, length), "further_labels": shifted(body, self.ahead, length)}
        return TrainingExamples({**streams, "body": inputs}, labels)

    def logits(self, hidden: Tensor, unembed: Unembed) -> Tensor:
        return unembed(hidden if self.narrow is None else self.narrow(hidden))

    def further_logits(self, hidden: Tensor, unembed: Unembed) -> Tensor:
        """(…, D) -> (…, V)."""
        return unembed(self.norm(self.dense(hidden)))

    def forward(self, run: ForwardPass) -> Mapping[str, LossTerm]:
        hidden, next_labels, further_labels = run.hidden(), run.targets["labels"], run.targets["further_labels"]
        loss = run.summed_cross_entropy(lambda h: self.logits(h, run.unembed), hidden, next_labels, self.classes)
        further = run.summed_cross_entropy(
            lambda h: self.further_logits(h, run.unembed), hidden, further_labels, self.classes
        )
        return {
            "loss": LossTerm(loss, (next_labels != IGNORED).sum()),
            "further": LossTerm(further, (further_labels != IGNORED).sum(), self.weight),
        }

    def cost(self, load: Load) -> Cost:
        narrow = 0 if self.narrow is None else self.narrow.weight.numel()
        return Cost(flops=2 * load.head_positions * (narrow + self.dense.weight.numel()))

    def head_positions(self, length: int) -> int:
        return length

    def unembed_positions(self, length: int) -> int:
        return 2 * length

    def prompt(self, ids: Sequence[int], wish: GenerationTarget = GenerationTarget()) -> Prompt:
        """Continue a text; an empty one starts after the end of another, as in training."""
        start = () if self.end_of_text is None else (self.end_of_text,)
        return Prompt(tuple(ids) or start, stop=self.end_of_text)

    def metrics(self) -> Mapping[str, Metric]:
        from torchmetrics.classification import MulticlassAccuracy

        return {
            name: MulticlassAccuracy(self.classes, average="micro", ignore_index=IGNORED, validate_args=False)
            for name in ("accuracy", "further_accuracy")
        }

    def update_metrics(self, run: ForwardPass, metrics: Mapping[str, Metric]) -> None:
        hidden = run.hidden()
        predictions = self.logits(hidden, run.unembed).argmax(-1)
        metrics["accuracy"].update(predictions.flatten(), run.targets["labels"].flatten())
        further_predictions = self.further_logits(hidden, run.unembed).argmax(-1)
        metrics["further_accuracy"].update(further_predictions.flatten(), run.targets["further_labels"].flatten())


def shifted(body: Stream, distance: int, length: int) -> Tensor:
    """(B, T + ahead) -> (B, T): the token `distance` positions later, or IGNORED if it is not of the same document."""
    labels = body.tokens[:, distance : distance + length].clone()
    if body.documents is None:
        return labels
    here, there = body.documents[:, :length], body.documents[:, distance : distance + length]
    return labels.masked_fill(torch.logical_or(here != there, there < 0), IGNORED)


@hookimpl
def objective() -> Mapping[str, type[Objective]]:
    return {"two-tokens": MultiToken}
