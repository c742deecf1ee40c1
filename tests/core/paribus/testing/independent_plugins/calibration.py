"""Calibration: whether a model's confidence in its predictions equals its accuracy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, ClassVar, final

import torch
from torch import Tensor

from paribus import Batch, EvaluatedModel, Measure, MeasureTraits, Range, TrialInfo, hookimpl

NAMES = ("error", "confidence", "accuracy")


@final
class Calibration(Measure):
    """Expected calibration error of next-token predictions: "On Calibration of Modern Neural Networks" (Guo et al.
    2017).

    Predictions are grouped into bins of equal width by their confidence, the largest probability. `error` is the
    difference of the mean confidence and the accuracy of a bin, weighted by its number of tokens; `confidence` and
    `accuracy` are the means over all tokens of the examples that are predicted within their document.
    """

    traits: ClassVar[MeasureTraits] = {"visibility": "past"}

    def __init__(
        self,
        *,
        examples: Annotated[int, "number of validation examples", Range(1)] = 64,
        bins: Annotated[int, "number of bins", Range(1, 10_000)] = 15,
    ) -> None:
        self.examples = examples
        self.bins = bins

    def names(self, trial: TrialInfo) -> Sequence[str]:
        return NAMES

    def measure(self, model: EvaluatedModel) -> Mapping[str, float | str]:
        sums = torch.zeros(3, self.bins, dtype=torch.float64, device=model.device)
        for batch in model.batches(self.examples):
            scores, tokens = model.logits(batch), batch.streams["body"].tokens
            if scores.shape[:2] != tokens.shape or scores.shape[-1] < model.vocabulary.size:
                return dict.fromkeys(NAMES, "the first objective does not score the tokens of the body")
            confidence, prediction = scores[:, :-1].double().softmax(-1).max(-1)
            correct, mask = (prediction == tokens[:, 1:]).double(), is_predicted(batch).double()
            place = (confidence * self.bins).long().clamp(max=self.bins - 1)  # a confidence of 1 is in the last bin
            values = torch.stack([confidence * mask, correct * mask, mask]).flatten(1)
            sums = sums.index_add(1, place.flatten(), values)
        confidences, hits, counts = sums
        total = float(counts.sum())
        if not total:
            return dict.fromkeys(NAMES, "the examples have no token that is predicted")
        return {
            "error": float((confidences - hits).abs().sum()) / total,
            "confidence": float(confidences.sum()) / total,
            "accuracy": float(hits.sum()) / total,
        }


def is_predicted(batch: Batch) -> Tensor:
    """(B, T - 1) bool: the next token is of the same document, and not visible."""
    body = batch.streams["body"]
    mask = torch.ones_like(body.tokens[:, 1:], dtype=torch.bool)
    if body.documents is not None:
        mask &= (body.documents[:, 1:] == body.documents[:, :-1]) & (body.documents[:, 1:] >= 0)
    if body.order is not None:
        mask &= body.order[:, 1:] > body.order[:, :-1]
    return mask


@hookimpl
def measure() -> Mapping[str, type[Measure]]:
    return {"calibration": Calibration}
