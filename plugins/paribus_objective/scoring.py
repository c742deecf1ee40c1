"""What every objective does with its logits: a sum and a count for the loss, and how often the best guess is right."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

import numpy as np
from torch import Tensor
from torch.nn import functional

from paribus import IGNORED, Term

if TYPE_CHECKING:
    from torchmetrics import Metric

OF_CLASSES: Final = ("accuracy", "f1", "matthews")
Ints = np.ndarray[tuple[int], np.dtype[np.int64]]


def cross_entropy(logits: Tensor, labels: Tensor, smoothing: float = 0.0) -> Term:
    """(…, C), (…) -> the summed loss over the labels that are not IGNORED, and how many they are."""
    total = functional.cross_entropy(
        logits.flatten(0, -2), labels.flatten(), ignore_index=IGNORED, reduction="sum", label_smoothing=smoothing
    )
    return Term(total, (labels != IGNORED).sum())


def accuracy(classes: int) -> Metric:
    """The share of labels, of those that are not IGNORED, that were the first guess."""
    from torchmetrics.classification import MulticlassAccuracy

    return MulticlassAccuracy(classes, average="micro", ignore_index=IGNORED, validate_args=False)


def update(metric: Metric, logits: Tensor, labels: Tensor) -> None:
    """Shows a batch to `accuracy`: (…, C), (…)."""
    metric.update(logits.detach().argmax(-1).flatten(), labels.flatten())


def exact() -> Metric:
    """The share of examples of which every label that is not IGNORED was the first guess."""
    from torchmetrics import MeanMetric

    return MeanMetric()


def update_exact(metric: Metric, logits: Tensor, labels: Tensor) -> None:
    """Shows a batch to `exact`: (B, T, C), (B, T)."""
    metric.update(((logits.detach().argmax(-1) == labels) | (labels == IGNORED)).all(-1).double())


def prior(train: Ints, val: Ints, classes: int) -> float:
    """Nats a label of `val` for whoever knows how frequent each was in `train`, with one added to each class."""
    counts = np.bincount(train, minlength=classes) + 1.0
    asked = np.bincount(val, minlength=classes)
    return float(-(asked @ np.log(counts / counts.sum())) / asked.sum())


def of_classes(classes: int) -> Mapping[str, Metric]:
    """What a task of classes reports: the share that is right, F1, and the correlation of guesses with labels."""
    from paribus_objective import measures

    made = accuracy(classes), measures.f1(classes), measures.Matthews(classes)
    return dict(zip(OF_CLASSES, made, strict=True))
