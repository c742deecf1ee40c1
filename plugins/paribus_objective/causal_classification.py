"""Tell of which class a text is, in a model whose rows see only what came before."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, ClassVar, final

import torch
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
    Tokens,
    TrainingExamples,
    Traits,
    Unembed,
    Vocabulary,
    labels_of,
)
from paribus_objective import labelled, scoring
from paribus_objective.narrowing import Narrow
from paribus_objective.pooling import Plain, pooled

if TYPE_CHECKING:
    from torchmetrics import Metric


@final
class CausalClassification(Objective):
    """Scores classes by the last row of `[bos] A [cls]`, or of `[bos] A [sep] B [cls]` where the corpus has pairs, and
    goes on predicting the next token: "Improving Language Understanding" (Radford et al. 2018).

    Their start, delimiter and extract tokens are `bos`, `sep` and `cls`, which a language model has not met before, as
    theirs had not. (B, T, D) -> (B, C), and (B, T, V) for the loss beside it.
    """

    terms: ClassVar[Mapping[str, str]] = {"loss": "labels", "auxiliary": "following"}
    traits: ClassVar[Traits] = {
        "forms": "texts",
        "corrupts": False,
        "sight": "past",
        "parts": [],
        "segments": True,
        "needs": ["bos", "sep", "cls", "documents", "labels"],
        "told": {"classes": "least"},
    }

    def __init__(
        self,
        shape: Shape,
        vocabulary: Vocabulary,
        norm: Norms,
        *,
        classes: Annotated[int, "classes that are scored, at least as many as the corpus has", Range(2, 65536)] = 2,
        auxiliary: Annotated[float, "weight of the language model's loss; 0 only measures it", Range(0)] = 0.5,
        smoothing: Annotated[float, "share of a label that is spread over all classes", Range(0, below=1)] = 0.0,
    ) -> None:
        super().__init__()
        self.classes = classes
        self.auxiliary = auxiliary
        self.smoothing = smoothing
        self.texts = labelled.Texts(shape, vocabulary, "classify-causal", ("bos", "sep", "cls"))
        self.head = Plain(shape.width, classes)
        self.narrow = Narrow(shape)

    def example_count(self, tokens: Tokens, length: int) -> int:
        labelled.one_each(tokens, "classify-causal")
        labelled.within(labelled.told(tokens).values, self.classes, "classify-causal")
        return len(tokens.documents) - 1

    def example_lengths(self, tokens: Tokens, length: int) -> labelled.Array:
        return self.texts.lengths(tokens, length)

    def skipped_documents(self, tokens: Tokens, length: int) -> Mapping[str, int]:
        return self.texts.left_out(tokens, length)

    def form(self, tokens: Tokens, length: int, draw: Draw) -> TrainingExamples:
        index = draw.index.numpy()
        stream, last = self.texts(tokens, index, length)
        following = torch.full_like(stream.tokens, IGNORED)
        following[:, :-1] = stream.tokens[:, 1:]
        following[torch.arange(length) >= last.unsqueeze(1)] = IGNORED
        labels = torch.from_numpy(labels_of(tokens, index))
        return TrainingExamples({"body": stream}, {"labels": labels, "last": last, "following": following})

    def logits(self, hidden: Tensor, unembed: Unembed) -> Tensor:
        scores: Tensor = self.head(hidden)
        return scores

    def forward(self, run: ForwardPass) -> Mapping[str, LossTerm]:
        smoothing = self.smoothing if self.training else 0.0
        next_ = scoring.cross_entropy(run.unembed(self.narrow(run.hidden("body"))), run.targets["following"])
        return {
            "loss": scoring.cross_entropy(self._logits(run), run.targets["labels"], smoothing),
            "auxiliary": next_._replace(weight=self.auxiliary),
        }

    def unigram_loss(self, train: Tokens, targets: Mapping[str, Tensor]) -> float | None:
        """With one added to each class that is scored."""
        return scoring.prior(scoring.counted(labels_of(train), self.classes), targets["labels"])

    def cost(self, load: Load) -> Cost:
        return self.head.cost(load) + self.narrow.cost(load._replace(head_positions=load.head_positions * load.queries))

    def head_positions(self, length: int) -> int:
        return 1

    def unembed_positions(self, length: int) -> int:
        return length

    def metrics(self) -> Mapping[str, Metric]:
        return scoring.of_classes(self.classes)

    def update_metrics(self, run: ForwardPass, metrics: Mapping[str, Metric]) -> None:
        for name in scoring.OF_CLASSES:
            scoring.update(metrics[name], self._logits(run), run.targets["labels"])

    def _logits(self, run: ForwardPass) -> Tensor:
        return run.cached("logits", lambda: self.logits(pooled(run, "last"), run.unembed))
