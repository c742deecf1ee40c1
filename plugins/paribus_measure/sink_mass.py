"""Attention sink mass: share of attention on the first token."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, ClassVar, final

from torch import Tensor

from paribus import EvaluatedModel, Measure, MeasureTraits, Range, TrialInfo
from paribus_measure.attention_weights import SUMMARY, VisibleTokens, mean_by_head, summarize


@final
class SinkMass(Measure):
    """Share of attention on the first token of a document, whatever it is, or on a learned sink.

    "Efficient Streaming Language Models with Attention Sinks" (Xiao et al. 2023). `mean` is over all tokens and heads
    of the body, `lowest` and `highest` are heads; `nowhere` is the share of a learned sink, 0 if weights sum to 1.
    Tokens that see only the first token do not count.
    """

    traits: ClassVar[MeasureTraits] = {"needs": ["weights", "normalized"]}

    def __init__(self, *, examples: Annotated[int, "number of validation examples", Range(1)] = 32) -> None:
        self.examples = examples

    def names(self, trial: TrialInfo) -> Sequence[str]:
        return (*SUMMARY, "nowhere")

    def measure(self, model: EvaluatedModel) -> Mapping[str, float | str]:
        first_token = summarize(mean_by_head(model, self.examples, _first_token_mass))
        return {**first_token, "nowhere": summarize(mean_by_head(model, self.examples, _sink_mass))["mean"]}


def _first_token_mass(weights: Tensor, visible: VisibleTokens) -> Tensor:
    """(B, H, T, S) -> (B, H, T)."""
    index = visible.first[:, None, :, None].expand(*weights.shape[:3], 1)
    return weights.gather(-1, index)[..., 0]


def _sink_mass(weights: Tensor, visible: VisibleTokens) -> Tensor:
    """(B, H, T, S) -> (B, H, T)."""
    return (1 - weights.sum(-1)).clamp(min=0)
