"""How far attention reaches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, ClassVar, final

import torch
from torch import Tensor

from paribus import EvaluatedModel, Measure, Range, Traits, TrialInfo
from paribus_measure.weighed import SUMMARY, Seen, by_head, summary


@final
class EffectiveSpan(Measure):
    """How far away the rows are that a row weighs: the mean of the distance in rows, weighed by attention.

    "Adaptive Attention Span in Transformers" (Sukhbaatar et al. 2019) learns a bound of it; "Do Vision Transformers See
    Like Convolutional Neural Networks?" (Raghu et al. 2021) measures it so. `mean` is over all rows and heads of the
    body, `lowest` and `highest` are the heads that stay nearest and that reach farthest.
    """

    traits: ClassVar[Traits] = {"needs": ["weights", "shares"]}

    def __init__(self, *, examples: Annotated[int, "validation examples that are looked at", Range(1)] = 32) -> None:
        self.examples = examples

    def names(self, trial: TrialInfo) -> Sequence[str]:
        return SUMMARY

    def measure(self, model: EvaluatedModel) -> Mapping[str, float | str]:
        return summary(by_head(model, self.examples, _distance))


def _distance(weights: Tensor, seen: Seen) -> Tensor:
    """(B, H, T, S) -> (B, H, T): of what a row weighs, whatever share of it goes nowhere."""
    rows = torch.arange(weights.shape[-1], dtype=weights.dtype, device=weights.device)
    away = (rows[:, None] - rows[None, :]).abs()  # (T, S)
    return (weights * away).sum(-1) / weights.sum(-1).clamp(min=1e-12)
