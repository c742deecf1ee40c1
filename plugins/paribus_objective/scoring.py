"""What every objective does with its logits: a sum and a count for the loss, and how often the best guess is right."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from torch import Tensor
from torch.nn import functional

from paribus import IGNORED, LossTerm

if TYPE_CHECKING:
    from torchmetrics import Metric

OF_CLASSES: Final = ("accuracy", "f1", "matthews")
Ints = np.ndarray[tuple[int], np.dtype[np.int64]]


def cross_entropy(logits: Tensor, labels: Tensor, smoothing: float = 0.0) -> LossTerm:
    """(…, C), (…) -> the summed loss over the labels that are not IGNORED, and how many they are."""
    total = functional.cross_entropy(
        logits.flatten(0, -2), labels.flatten(), ignore_index=IGNORED, reduction="sum", label_smoothing=smoothing
    )
    return LossTerm(total, (labels != IGNORED).sum())


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


def counted(labels: Ints, classes: int) -> Ints:
    """(C,) how often each class is a label, of those that are not IGNORED."""
    return np.bincount(labels[labels != IGNORED], minlength=classes)


def prior(seen: np.ndarray[tuple[int, ...], np.dtype[Any]], labels: Tensor) -> float | None:
    """Nats a label, of those that are not IGNORED, for whoever knows how often each was seen, and adds one to each.

    (C,), (…); None where all are.
    """
    shares = (seen + 1) / (seen + 1).sum()
    asked = counted(labels.flatten().numpy(), len(seen))
    return float(-(asked @ np.log(shares)) / asked.sum()) if asked.sum() else None


def of_classes(classes: int) -> Mapping[str, Metric]:
    """What a task of classes reports: the share that is right, F1, and the correlation of guesses with labels."""
    from paribus_objective import measures

    made = accuracy(classes), measures.f1(classes), measures.Matthews(classes)
    return dict(zip(OF_CLASSES, made, strict=True))
