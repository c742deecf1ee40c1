"""Losses and accuracies that objectives share: cross-entropy, most likely classes, label frequencies."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from paribus import IGNORED, ForwardPass, LossTerm, at_least_float32, map_in_chunks

if TYPE_CHECKING:
    from torchmetrics import Metric

CLASS_METRICS: Final = ("accuracy", "f1", "matthews")
Head: TypeAlias = Callable[[Tensor], Tensor]
Ints = np.ndarray[tuple[int], np.dtype[np.int64]]


def cross_entropy(logits: Tensor, labels: Tensor, smoothing: float = 0.0) -> LossTerm:
    """(…, C), (…) -> the summed loss over the labels that are not IGNORED, and their count."""
    total = functional.cross_entropy(
        at_least_float32(logits).flatten(0, -2),
        labels.flatten(),
        ignore_index=IGNORED,
        reduction="sum",
        label_smoothing=smoothing,
    )
    return LossTerm(total, (labels != IGNORED).sum())


class LabelScores(NamedTuple):
    """What metrics need of the logits of labels, (…, C)."""

    losses: Tensor  # (…), cross-entropy of each label; 0 where it is IGNORED
    predictions: Tensor  # (…), the most likely class
    squares: Tensor  # (…), squared log-sum-exp of the logits; 0 where the label is IGNORED


def label_scores(
    run: ForwardPass, head: Head, hidden: Tensor, labels: Tensor, classes: int, *, name: str = "label_scores"
) -> LabelScores:
    """Return scores of the labels without gradients, computed once per pass for each `name`: (…, D), (…)."""

    def score(part: Tensor, part_labels: Tensor) -> tuple[Tensor, ...]:
        logits = head(part)
        values = at_least_float32(logits)
        losses = functional.cross_entropy(values, part_labels, ignore_index=IGNORED, reduction="none")
        known = part_labels != IGNORED
        label_logits = values.gather(-1, part_labels.where(known, 0).unsqueeze(-1)).squeeze(-1)
        return losses, logits.argmax(-1), (losses + label_logits).square().where(known, 0)

    return run.cached(name, lambda: LabelScores(*map_in_chunks(score, classes, hidden, labels)))


def token_cross_entropy(
    run: ForwardPass,
    head: Head,
    hidden: Tensor,
    labels: Tensor,
    classes: int,
    *,
    smoothing: float = 0.0,
    name: str = "label_scores",
) -> LossTerm:
    """(…, D), (…) -> the summed loss over the labels that are not IGNORED, and their count.

    In evaluation, it is that of `label_scores`, which metrics read as well.
    """
    if torch.is_grad_enabled() or smoothing:
        total = run.summed_cross_entropy(head, hidden, labels, classes, smoothing=smoothing)
    else:
        total = label_scores(run, head, hidden, labels, classes, name=name).losses.sum()
    return LossTerm(total, (labels != IGNORED).sum())


def penalised_cross_entropy(
    run: ForwardPass, head: Head, hidden: Tensor, labels: Tensor, classes: int, *, z: float
) -> Mapping[str, LossTerm]:
    """Return `token_cross_entropy` as `loss`, and the z-loss of weight `z` at the same positions: (…, D), (…)."""
    if torch.is_grad_enabled():
        loss, squares = run.summed_cross_entropy(head, hidden, labels, classes, z=z)
    else:
        scores = label_scores(run, head, hidden, labels, classes)
        loss, squares = scores.losses.sum(), scores.squares.sum()
    count = (labels != IGNORED).sum()
    return {"loss": LossTerm(loss, count), "z": LossTerm(squares, count, z)}


def accuracy(classes: int) -> Metric:
    """Share of the labels that are the most likely class; IGNORED labels do not count."""
    from torchmetrics.classification import MulticlassAccuracy

    return MulticlassAccuracy(classes, average="micro", ignore_index=IGNORED, validate_args=False)


def update(metric: Metric, predictions: Tensor, labels: Tensor) -> None:
    """Add a batch to `accuracy` or another metric of predictions: (…), (…)."""
    metric.update(predictions.flatten(), labels.flatten())


def exact_match() -> Metric:
    """Share of the examples of which every label is the most likely class; IGNORED labels do not count."""
    from torchmetrics import MeanMetric

    return MeanMetric()


def update_exact_match(metric: Metric, predictions: Tensor, labels: Tensor) -> None:
    """Add a batch to `exact_match`: (B, T), (B, T)."""
    metric.update(((predictions == labels) | (labels == IGNORED)).all(-1).double())


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
