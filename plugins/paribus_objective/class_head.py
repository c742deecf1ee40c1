"""Classification heads, the pooling before them, and the methods that objectives with such a head share."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, ClassVar, Literal, Protocol, final

import torch
from torch import Tensor, nn

from paribus import Cost, ForwardPass, Load, LossTerm, Role, Tokens, Unembed, labels_of
from paribus_objective import scoring

if TYPE_CHECKING:
    from torchmetrics import Metric

Pool = Literal["first", "mean", "last"]


@final
class PooledHead(nn.Module):
    """A dense layer with tanh, and a score for each class: "BERT" (Devlin et al. 2019)."""

    roles: ClassVar[Mapping[str, Role]] = {"dense.weight": "head", "scores.weight": "head"}

    def __init__(self, width: int, classes: int, *, bias: bool = True) -> None:
        super().__init__()
        self.dense = nn.Linear(width, width)
        self.scores = nn.Linear(width, classes, bias=bias)

    def forward(self, hidden: Tensor) -> Tensor:
        """(…, D) -> (…, C)."""
        scores: Tensor = self.scores(self.dense(hidden).tanh())
        return scores

    def cost(self, load: Load) -> Cost:
        return Cost(flops=2 * load.head_positions * (self.dense.weight.numel() + self.scores.weight.numel()))


@final
class LinearHead(nn.Module):
    """A score for each class."""

    roles: ClassVar[Mapping[str, Role]] = {"scores.weight": "head"}

    def __init__(self, width: int, classes: int, *, bias: bool = True) -> None:
        super().__init__()
        self.scores = nn.Linear(width, classes, bias=bias)

    def forward(self, hidden: Tensor) -> Tensor:
        """(…, D) -> (…, C)."""
        scores: Tensor = self.scores(hidden)
        return scores

    def cost(self, load: Load) -> Cost:
        return Cost(flops=2 * load.head_positions * self.scores.weight.numel())


class Head(Protocol):
    """Module that scores classes."""

    def __call__(self, hidden: Tensor) -> Tensor: ...

    def cost(self, load: Load) -> Cost: ...


class HasHead(Protocol):
    """Objective with a head that scores classes."""

    @property
    def head(self) -> Head: ...


class HasLinear(Protocol):
    """Objective whose head is one linear layer."""

    @property
    def head(self) -> nn.Linear: ...


class HasPool(Protocol):
    """Objective that scores one vector of each sequence."""

    @property
    def pool(self) -> Pool: ...

    def logits(self, hidden: Tensor, unembed: Unembed) -> Tensor: ...


class Classifier(Protocol):
    """Objective whose main loss is the cross-entropy of classes."""

    @property
    def classes(self) -> int: ...

    def class_logits(self, run: ForwardPass) -> Tensor:
        """Logits of the labels, computed once per pass."""
        ...


class SmoothedClassifier(Classifier, Protocol):
    """Classifier with label smoothing in training."""

    @property
    def smoothing(self) -> float: ...

    @property
    def training(self) -> bool: ...


def pool_hidden(run: ForwardPass, pool: Pool) -> Tensor:
    """(B, D): the first or last token or the mean of each sequence; the targets have the position of the `last`."""
    hidden = run.hidden("body")
    if pool == "first":
        return hidden[:, 0]
    if pool == "last":
        return hidden[torch.arange(len(hidden), device=hidden.device), run.targets["last"]]
    documents = run.streams["body"].documents
    assert documents is not None, "texts of one batch differ in length, so they are padded"
    mask = (documents >= 0).unsqueeze(-1).to(hidden.dtype)
    return (hidden * mask).sum(1) / mask.sum(1)


def logits(objective: HasHead | HasLinear, hidden: Tensor, unembed: Unembed) -> Tensor:
    scores: Tensor = objective.head(hidden)
    return scores


def cost(objective: HasHead, load: Load) -> Cost:
    return objective.head.cost(load)


def linear_cost(objective: HasLinear, load: Load) -> Cost:
    return Cost(flops=2 * load.head_positions * objective.head.weight.numel())


def one_position(objective: object, length: int) -> int:
    """Return 1: the head runs on one vector of each sequence."""
    return 1


def every_position(objective: object, length: int) -> int:
    """Return `length`: the head runs on every position."""
    return length


def pooled_logits(objective: HasPool, run: ForwardPass) -> Tensor:
    """(B, C): logits of the pooled sequence."""
    return run.cached("logits", lambda: objective.logits(pool_hidden(run, objective.pool), run.unembed))


def forward(objective: Classifier, run: ForwardPass) -> Mapping[str, LossTerm]:
    return {"loss": scoring.cross_entropy(objective.class_logits(run), run.targets["labels"])}


def smoothed_loss(objective: SmoothedClassifier, run: ForwardPass) -> LossTerm:
    """Return the cross-entropy; labels are smoothed in training only."""
    smoothing = objective.smoothing if objective.training else 0.0
    return scoring.cross_entropy(objective.class_logits(run), run.targets["labels"], smoothing)


def smoothed_forward(objective: SmoothedClassifier, run: ForwardPass) -> Mapping[str, LossTerm]:
    return {"loss": smoothed_loss(objective, run)}


def unigram_loss(objective: Classifier, train: Tokens, targets: Mapping[str, Tensor]) -> float | None:
    """Return the loss of predicting the class frequencies of the training split, with add-one smoothing."""
    return scoring.frequency_loss(scoring.label_counts(labels_of(train), objective.classes), targets["labels"])


def balanced_unigram_loss(objective: object, train: Tokens, targets: Mapping[str, Tensor]) -> float:
    """Return the loss of guessing between two balanced classes."""
    return math.log(2)


def accuracy(objective: Classifier) -> Mapping[str, Metric]:
    return {"accuracy": scoring.accuracy(objective.classes)}


def metrics(objective: Classifier) -> Mapping[str, Metric]:
    return scoring.class_metrics(objective.classes)


def update_metrics(objective: Classifier, run: ForwardPass, metrics: Mapping[str, Metric]) -> None:
    for name in scoring.CLASS_METRICS:
        if name in metrics:
            scoring.update(metrics[name], objective.class_logits(run).argmax(-1), run.targets["labels"])
