"""Scores of single answers, as metrics average them over the evaluated examples."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final, TypeAlias, final

import torch
from torch import Tensor
from torchmetrics import MeanMetric, Metric
from torchmetrics.classification import MulticlassAccuracy

from paribus.parts.batch import IGNORED

ScoreReader: TypeAlias = Callable[..., Tensor | None]

ROUNDING: Final = 1e-4  # by which the mean of the scores may differ from the metric, which is a sum in float32


@final
class AnswerScores:
    """Recorder of the score of each example, for metrics that are the mean of them.

    These are torchmetrics' `MulticlassAccuracy` with `average="micro"`, and `MeanMetric` without weights, if each
    update has one value for each example of the batch. Accuracies of tokens have more, and are not recorded.
    """

    def __init__(self, metrics: Mapping[str, Metric]) -> None:
        self._batch_size = 0
        self._examples = 0  # in all batches
        self._parts: dict[str, list[Tensor]] = {}
        for name, metric in metrics.items():
            read = _score_reader(metric)
            if read is not None:
                self._parts[name] = []
                metric.update = partial(self._update, name, metric.update, read)  # type: ignore[method-assign]  # as torchmetrics does

    def start_batch(self, size: int) -> None:
        """Set the number of examples of the next updates."""
        self._batch_size = size
        self._examples += size

    def _update(self, name: str, update: Callable[..., None], read: ScoreReader, *args: Any, **options: Any) -> None:
        update(*args, **options)
        if name not in self._parts:
            return
        has_examples = bool(args) and not options and getattr(args[0], "shape", None) == (self._batch_size,)
        scores = read(*args) if has_examples else None
        if scores is None:
            del self._parts[name]
        else:
            self._parts[name].append(scores)

    def scores(self, values: Mapping[str, float]) -> dict[str, list[float]]:
        """Return the scores of all examples by metric, for the metrics whose `values` are the mean of them."""
        scores: dict[str, list[float]] = {}
        for name, parts in self._parts.items():
            joined = torch.cat(parts).float().cpu() if parts else torch.empty(0)
            if len(joined) == self._examples > 0 and abs(float(joined.double().mean()) - values[name]) <= ROUNDING:
                scores[name] = joined.tolist()
        return scores


def _score_reader(metric: Metric) -> ScoreReader | None:
    """Return a function that reads scores from the arguments of an update; None if the metric is no mean of them."""
    if isinstance(metric, MeanMetric):
        return _value
    if isinstance(metric, MulticlassAccuracy) and metric.average == "micro":
        return _is_right
    return None


def _value(value: Tensor, *weight: Any) -> Tensor | None:
    return None if weight else value.detach()


def _is_right(predictions: Tensor, labels: Tensor) -> Tensor:
    """Return 1 or 0 for each example, and NaN without a label, which no metric equals."""
    return (predictions == labels).float().masked_fill(labels == IGNORED, torch.nan)
