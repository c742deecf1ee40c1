"""Tell what is in an image."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal, final

import numpy as np
import torch
from torch import Tensor, nn

from paribus import (
    Cost,
    DataError,
    Draw,
    ForwardPass,
    Load,
    LossTerm,
    Norms,
    Objective,
    Problem,
    Range,
    Role,
    Shape,
    Stream,
    Tokens,
    TrainingExamples,
    Traits,
    Unembed,
    Vocabulary,
    labels_of,
)
from paribus_objective import scoring
from paribus_objective.pooling import Pooled

if TYPE_CHECKING:
    from torchmetrics import Metric

Ints = np.ndarray[tuple[int], np.dtype[np.int64]]


@final
class ImageClassification(Objective):
    """Scores classes by the row that stands for the whole image: "An Image is Worth 16x16 Words" (Dosovitskiy et al.
    2021).

    A `linear` head is that of their fine-tuning; `mlp`, a layer with tanh before it, that of their pre-training.
    Smoothing spreads a share of each label over all classes while the model trains: "Rethinking the Inception
    Architecture for Computer Vision" (Szegedy et al. 2016); what is evaluated is not smoothed.
    (B, T, D) -> (B, C), from the first row.
    """

    traits: ClassVar[Traits] = {
        "forms": "images",
        "corrupts": False,
        "sight": "both",
        "parts": [],
        "needs": ["labels"],
        "told": {"classes": "least"},
        "unembeds": False,
    }
    roles: ClassVar[Mapping[str, Role]] = {"head.weight": "head"}

    def __init__(
        self,
        shape: Shape,
        vocabulary: Vocabulary,
        norm: Norms,
        *,
        classes: Annotated[int, "classes that are scored, at least as many as the corpus has", Range(2, 65536)] = 1000,
        head: Annotated[Literal["linear", "mlp"], "one matrix, or a layer with tanh before it"] = "linear",
        smoothing: Annotated[float, "share of a label that is spread over all classes", Range(0, below=1)] = 0.0,
    ) -> None:
        super().__init__()
        self.classes = classes
        self.smoothing = smoothing
        self.head = nn.Linear(shape.width, classes) if head == "linear" else Pooled(shape.width, classes)

    def example_count(self, tokens: Tokens, length: int) -> int:
        return len(tokens.documents) - 1

    def form(self, tokens: Tokens, length: int, draw: Draw) -> TrainingExamples:
        index = draw.index.numpy()
        first, last = (np.asarray(tokens.sentences)[np.asarray(tokens.documents)[index + at]] for at in (0, 1))
        sizes = np.unique(last - first)
        if len(sizes) > 1:
            raise _uneven(sizes)
        values = np.asarray(tokens.ids)[first[:, None] + np.arange(sizes[0])]
        pixels = torch.from_numpy(values.astype(np.uint8))  # an eighth of what ids of 64 bits would take
        return TrainingExamples({"body": Stream(pixels)}, {"labels": torch.from_numpy(labels_of(tokens, index))})

    def logits(self, hidden: Tensor, unembed: Unembed) -> Tensor:
        scores: Tensor = self.head(hidden)
        return scores

    def forward(self, run: ForwardPass) -> Mapping[str, LossTerm]:
        smoothing = self.smoothing if self.training else 0.0
        return {"loss": scoring.cross_entropy(self._logits(run), run.targets["labels"], smoothing)}

    def unigram_loss(self, train: Tokens, targets: Mapping[str, Tensor]) -> float | None:
        """With one added to each class that is scored."""
        return scoring.prior(scoring.counted(labels_of(train), self.classes), targets["labels"])

    def cost(self, load: Load) -> Cost:
        if isinstance(self.head, Pooled):
            return self.head.cost(load)
        return Cost(flops=2 * load.head_positions * self.head.weight.numel())

    def head_positions(self, length: int) -> int:
        return 1

    def metrics(self) -> Mapping[str, Metric]:
        return {"accuracy": scoring.accuracy(self.classes)}

    def update_metrics(self, run: ForwardPass, metrics: Mapping[str, Metric]) -> None:
        scoring.update(metrics["accuracy"], self._logits(run), run.targets["labels"])

    def _logits(self, run: ForwardPass) -> Tensor:
        return run.cached("logits", lambda: self.logits(run.hidden("body")[:, 0], run.unembed))


def _uneven(sizes: Ints) -> DataError:
    what = f"a batch has images of {sizes[0]:,} and of {sizes[-1]:,} values, and they are to be of one size"
    return DataError(Problem(code="uneven-images", path="corpus", message=what, valid="images of one size"))
