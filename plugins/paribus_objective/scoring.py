"""Losses and accuracies that objectives share: summed cross-entropy, first guesses, label frequencies."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from torch import Tensor
from torch.nn import functional

from paribus import IGNORED, LossTerm

if TYPE_CHECKING:
    from torchmetrics import Metric

CLASS_METRICS: Final = ("accuracy", "f1", "matthews")
Ints = np.ndarray[tuple[int], np.dtype[np.int64]]


def cross_entropy(logits: Tensor, labels: Tensor, smoothing: float = 0.0) -> LossTerm:
    """(…, C), (…) -> the summed loss over the labels that are not IGNORED, and their count."""
    total = functional.cross_entropy(
        logits.flatten(0, -2), labels.flatten(), ignore_index=IGNORED, reduction="sum", label_smoothing=smoothing
    )
    return LossTerm(total, (labels != IGNORED).sum())


def accuracy(classes: int) -> Metric:
    """Share of the labels that are the first guess; IGNORED labels do not count."""
    from torchmetrics.classification import MulticlassAccuracy

    return MulticlassAccuracy(classes, average="micro", ignore_index=IGNORED, validate_args=False)


def update(metric: Metric, logits: Tensor, labels: Tensor) -> None:
    """Add a batch to `accuracy` or another metric of guesses: (…, C), (…)."""
    metric.update(logits.detach().argmax(-1).flatten(), labels.flatten())


def exact_match() -> Metric:
    """Share of the examples of which every label is the first guess; IGNORED labels do not count."""
    from torchmetrics import MeanMetric

    return MeanMetric()


def update_exact_match(metric: Metric, logits: Tensor, labels: Tensor) -> None:
    """Add a batch to `exact_match`: (B, T, C), (B, T)."""
    metric.update(((logits.detach().argmax(-1) == labels) | (labels == IGNORED)).all(-1).double())


def label_counts(labels: Ints, classes: int) -> Ints:
    """(C,) frequency of each class; IGNORED labels do not count."""
    return np.bincount(labels[labels != IGNORED], minlength=classes)


def frequency_loss(counts: np.ndarray[tuple[int, ...], np.dtype[Any]], labels: Tensor) -> float | None:
    """Return the mean loss in nats of predicting the class frequencies, with add-one smoothing.

    (C,), (…); None if all labels are IGNORED.
    """
    shares = (counts + 1) / (counts + 1).sum()
    targets = label_counts(labels.flatten().numpy(), len(counts))
    return float(-(targets @ np.log(shares)) / targets.sum()) if targets.sum() else None


def class_metrics(classes: int) -> Mapping[str, Metric]:
    """Metrics of a classification task: accuracy, F1 and Matthews correlation."""
    from paribus_objective import metrics

    values = accuracy(classes), metrics.f1(classes), metrics.Matthews(classes)
    return dict(zip(CLASS_METRICS, values, strict=True))
