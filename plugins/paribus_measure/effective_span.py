"""Effective attention span: mean distance of attention."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, ClassVar, final

import torch
from torch import Tensor

from paribus import EvaluatedModel, Measure, MeasureTraits, Range, TrialInfo
from paribus_measure.attention_weights import SUMMARY, VisibleTokens, mean_by_head, summarize


@final
class EffectiveSpan(Measure):
    """Effective attention span: the mean distance in tokens, weighted by attention.

    "Adaptive Attention Span in Transformers" (Sukhbaatar et al. 2019) learns a bound on it; "Do Vision Transformers See
    Like Convolutional Neural Networks?" (Raghu et al. 2021) measures it like this. `mean` is over all tokens and heads
    of the body, `lowest` and `highest` are the heads with the extreme means.
    """

    traits: ClassVar[MeasureTraits] = {"needs": ["weights", "normalized"]}

    def __init__(self, *, examples: Annotated[int, "number of validation examples", Range(1)] = 32) -> None:
        self.examples = examples

    def names(self, trial: TrialInfo) -> Sequence[str]:
        return SUMMARY

    def measure(self, model: EvaluatedModel) -> Mapping[str, float | str]:
        return summarize(mean_by_head(model, self.examples, _distance))


def _distance(weights: Tensor, visible: VisibleTokens) -> Tensor:
    """(B, H, T, S) -> (B, H, T): for weights normalized to 1, without the share of a sink."""
    positions = torch.arange(weights.shape[-1], dtype=weights.dtype, device=weights.device)
    distance = (positions[:, None] - positions[None, :]).abs()  # (T, S)
    return (weights * distance).sum(-1) / weights.sum(-1).clamp(min=1e-12)
