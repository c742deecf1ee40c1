"""Metrics of GLUE and SQuAD, from torchmetrics where possible; an undefined value is 0, as is usual."""

from __future__ import annotations

import warnings
from typing import Literal, final

import torch
from torch import Tensor
from torchmetrics import Metric
from torchmetrics.classification import BinaryF1Score, MulticlassF1Score
from torchmetrics.functional.classification import multiclass_confusion_matrix
from torchmetrics.functional.regression import pearson_corrcoef, spearman_corrcoef

from paribus import IGNORED

Kind = Literal["pearson", "spearman"]


def f1(classes: int) -> Metric:
    """F1 of class 1 for two classes, as in GLUE; otherwise the mean over the classes that occur."""
    if classes == 2:
        return BinaryF1Score(ignore_index=IGNORED, validate_args=False)
    return MulticlassF1Score(classes, average="macro", ignore_index=IGNORED, validate_args=False)


@final
class Matthews(Metric):
    """Correlation of labels and predictions: "Comparison of the predicted and observed secondary structure of T4 phage
    lysozyme" (Matthews 1975); for more than two classes, Gorodkin (2004).

    It is 0 if all predictions are one class, as in scikit-learn; torchmetrics gives some of these cases another value.
    """

    full_state_update = False
    higher_is_better = True
    counts: Tensor  # (C, C): labels by predictions

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.classes = classes
        self.add_state("counts", torch.zeros(classes, classes, dtype=torch.int64), dist_reduce_fx="sum")

    def update(self, predictions: Tensor, labels: Tensor) -> None:
        """(N,), (N,)."""
        self.counts += multiclass_confusion_matrix(
            predictions, labels, self.classes, ignore_index=IGNORED, validate_args=False
        )

    def compute(self) -> Tensor:
        counts = self.counts.double()
        labels, predictions, total = counts.sum(1), counts.sum(0), counts.sum()
        covariance = counts.trace() * total - labels @ predictions
        variances = (total**2 - labels @ labels) * (total**2 - predictions @ predictions)
        return covariance / variances.sqrt() if variances > 0 else torch.zeros_like(total)


@final
class Correlation(Metric):
    """Correlation of predictions and labels: Pearson's, or Spearman's rank correlation."""

    full_state_update = False
    higher_is_better = True
    predictions: list[Tensor]
    labels: list[Tensor]

    def __init__(self, kind: Kind) -> None:
        super().__init__()
        self.kind = kind
        self.add_state("predictions", [], dist_reduce_fx="cat")
        self.add_state("labels", [], dist_reduce_fx="cat")

    def update(self, predictions: Tensor, labels: Tensor) -> None:
        """(N,), (N,)."""
        self.predictions.append(predictions.detach().double())
        self.labels.append(labels.double())

    def compute(self) -> Tensor:
        predictions, labels = concatenate(self.predictions), concatenate(self.labels)
        if len(predictions) < 2 or bool((predictions == predictions[0]).all()) or bool((labels == labels[0]).all()):
            return labels.new_zeros(())  # the correlation with a constant is undefined
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torchmetrics warns of a small variance, which is usual at first
            correlation = (pearson_corrcoef if self.kind == "pearson" else spearman_corrcoef)(predictions, labels)
        return correlation.nan_to_num(0.0)


@final
class AnswerMatch(Metric):
    """Quality of extracted answers, averaged over questions: "SQuAD" (Rajpurkar et al. 2016), and 2.0 (2018).

    Of several windows of one context, the one with the best span counts. No answer is predicted if the lowest null
    score of all windows exceeds that span's score by more than `threshold`.
    """

    full_state_update = False
    higher_is_better = True
    windows: list[Tensor]

    def __init__(self, *, threshold: float = 0.0) -> None:
        super().__init__()
        self.threshold = threshold
        self.add_state("windows", [], dist_reduce_fx="cat")

    def update(self, question: Tensor, span: Tensor, null: Tensor, span_score: Tensor, null_score: Tensor) -> None:
        """(N,) of each window: its question, the quality of the best span and that of no answer, and their scores."""
        columns = question, span, null, span_score.detach(), null_score.detach()
        self.windows.append(torch.stack([column.double() for column in columns], dim=1))

    def compute(self) -> Tensor:
        all_windows = concatenate(self.windows)
        values: list[float] = []
        for question in all_windows[:, 0].unique():
            windows = all_windows[all_windows[:, 0] == question]
            _, span, null, span_score, null_score = windows.unbind(1)
            best = int(span_score.argmax())
            is_null = bool(null_score.min() > span_score[best] + self.threshold)
            values.append(float(null[best] if is_null else span[best]))
        return all_windows.new_tensor(sum(values) / max(len(values), 1))


def concatenate(state: list[Tensor] | Tensor, columns: int = 5) -> Tensor:
    """Return a list state as one tensor; after a reduction over ranks it already is one."""
    if isinstance(state, Tensor):
        return state
    return torch.cat(state) if state else torch.empty(0, columns)
