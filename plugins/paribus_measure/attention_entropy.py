"""How evenly attention is spread."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, ClassVar, final

from torch import Tensor, special

from paribus import EvaluatedModel, Measure, Range, Traits, TrialInfo
from paribus_measure.weighed import SUMMARY, Seen, by_head, summary


@final
class AttentionEntropy(Measure):
    """How evenly rows weigh those that they see: -sum a ln a of a row's weights, over that of weights all alike.

    1 is an average, 0 a choice of one row: "Analyzing Multi-Head Self-Attention" (Voita et al. 2019), "Stabilizing
    Transformer Training by Preventing Attention Entropy Collapse" (Zhai et al. 2023). `mean` is over all rows and heads
    of the body, `lowest` and `highest` are its most and its least decided head. What a window hides has no weight.
    """

    traits: ClassVar[Traits] = {"needs": ["weights", "shares"]}

    def __init__(self, *, examples: Annotated[int, "validation examples that are looked at", Range(1)] = 32) -> None:
        self.examples = examples

    def names(self, trial: TrialInfo) -> Sequence[str]:
        return SUMMARY

    def measure(self, model: EvaluatedModel) -> Mapping[str, float | str]:
        return summary(by_head(model, self.examples, _evenness))


def _evenness(weights: Tensor, seen: Seen) -> Tensor:
    """(B, H, T, S) -> (B, H, T): of what a row weighs, whatever share of it goes nowhere."""
    shares = weights / weights.sum(-1, keepdim=True).clamp(min=1e-12)
    spread: Tensor = special.entr(shares).sum(-1)
    return spread / seen.among.clamp(min=2).double().log()[:, None]
