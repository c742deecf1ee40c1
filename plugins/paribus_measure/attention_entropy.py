"""Attention entropy: evenness of the attention weights."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, ClassVar, final

from torch import Tensor, special

from paribus import EvaluatedModel, Measure, MeasureTraits, Range, TrialInfo
from paribus_measure.attention_weights import SUMMARY, VisibleTokens, mean_by_head, summarize


@final
class AttentionEntropy(Measure):
    """Attention entropy: -sum a ln a of the weights of a token, divided by that of uniform weights.

    1 is an average, 0 a choice of one token: "Analyzing Multi-Head Self-Attention" (Voita et al. 2019), "Stabilizing
    Transformer Training by Preventing Attention Entropy Collapse" (Zhai et al. 2023). `mean` is over all tokens and
    heads of the body, `lowest` and `highest` are the heads with the extreme means. Tokens outside a window have no
    weight.
    """

    traits: ClassVar[MeasureTraits] = {"needs": ["weights", "normalized"]}

    def __init__(self, *, examples: Annotated[int, "number of validation examples", Range(1)] = 32) -> None:
        self.examples = examples

    def names(self, trial: TrialInfo) -> Sequence[str]:
        return SUMMARY

    def measure(self, model: EvaluatedModel) -> Mapping[str, float | str]:
        return summarize(mean_by_head(model, self.examples, _evenness))


def _evenness(weights: Tensor, visible: VisibleTokens) -> Tensor:
    """(B, H, T, S) -> (B, H, T): for weights normalized to 1, without the share of a sink."""
    shares = weights / weights.sum(-1, keepdim=True).clamp(min=1e-12)
    entropy: Tensor = special.entr(shares).sum(-1)
    return entropy / visible.total.clamp(min=2).double().log()[:, None]
