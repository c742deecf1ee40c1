"""Tell a number of a text, or of a pair of texts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, ClassVar, Final, Literal, final

import numpy as np
import torch
from torch import Tensor

from paribus import (
    Cost,
    Draw,
    ForwardPass,
    Load,
    LossTerm,
    Norms,
    Objective,
    Shape,
    Tokens,
    TrainingExamples,
    Traits,
    Unembed,
    Vocabulary,
)
from paribus_objective import labelled
from paribus_objective.pooling import Plain, Pooled, pooled

if TYPE_CHECKING:
    from torchmetrics import Metric

Kind = Literal["pearson", "spearman"]
MEASURED: Final[tuple[Kind, ...]] = ("pearson", "spearman")


@final
class Regression(Objective):
    """The squared error of one number that is told of `[cls] A [sep]`, or of `[cls] A [sep] B [sep]` where the corpus
    has pairs: STS-B, as "BERT" (Devlin et al. 2019) is tuned on it.

    (B, T, D) -> (B, 1), from the first row, the mean of all or the last.
    """

    terms: ClassVar[Mapping[str, str]] = {"loss": "judged"}
    traits: ClassVar[Traits] = {
        "forms": "texts",
        "corrupts": False,
        "sight": "both",
        "parts": [],
        "segments": True,
        "needs": ["cls", "sep", "documents", "scores"],
        "unembeds": False,
    }

    def __init__(
        self,
        shape: Shape,
        vocabulary: Vocabulary,
        norm: Norms,
        *,
        pool: Annotated[Literal["first", "mean", "last"], "the row that stands for all"] = "first",
        pooler: Annotated[bool, "whether a dense layer with tanh comes before the score"] = True,
    ) -> None:
        super().__init__()
        self.pool = pool
        self.texts = labelled.Texts(shape, vocabulary, "regress")
        self.head = Pooled(shape.width, 1) if pooler else Plain(shape.width, 1)

    def example_count(self, tokens: Tokens, length: int) -> int:
        labelled.one_each(tokens, "regress")
        return len(tokens.documents) - 1

    def example_lengths(self, tokens: Tokens, length: int) -> labelled.Array:
        return self.texts.lengths(tokens, length)

    def skipped_documents(self, tokens: Tokens, length: int) -> Mapping[str, int]:
        return self.texts.left_out(tokens, length)

    def form(self, tokens: Tokens, length: int, draw: Draw) -> TrainingExamples:
        index = draw.index.numpy()
        laid = self.texts(tokens, index, length)
        scores = torch.from_numpy(labelled.told(tokens).values[index].astype(np.float32))
        judged = torch.zeros(len(index), dtype=torch.int64)  # a score may be any number: what is counted is apart
        return TrainingExamples({"body": laid.stream}, {"judged": judged, "scores": scores, "last": laid.last})

    def logits(self, hidden: Tensor, unembed: Unembed) -> Tensor:
        scores: Tensor = self.head(hidden)
        return scores

    def forward(self, run: ForwardPass) -> Mapping[str, LossTerm]:
        asked = run.targets["judged"] >= 0
        error = (self._said(run) - run.targets["scores"]).square() * asked
        return {"loss": LossTerm(error.sum(), asked.sum())}

    def cost(self, load: Load) -> Cost:
        return self.head.cost(load)

    def head_positions(self, length: int) -> int:
        return 1

    def metrics(self) -> Mapping[str, Metric]:
        from paribus_objective import measures

        return {kind: measures.Correlation(kind) for kind in MEASURED}

    def update_metrics(self, run: ForwardPass, metrics: Mapping[str, Metric]) -> None:
        for name in MEASURED:
            metrics[name].update(self._said(run), run.targets["scores"])

    def _said(self, run: ForwardPass) -> Tensor:
        """(B,)."""
        return run.cached("said", lambda: self.logits(pooled(run, self.pool), run.unembed).squeeze(-1))
