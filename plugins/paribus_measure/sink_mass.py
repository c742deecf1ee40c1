"""How much attention goes to the first row."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, ClassVar, final

from torch import Tensor

from paribus import EvaluatedModel, Measure, Range, Traits, TrialInfo
from paribus_measure.weighed import SUMMARY, Seen, by_head, summary


@final
class SinkMass(Measure):
    """The share of attention that goes to the first row of a document, whatever that holds, or nowhere at all.

    "Efficient Streaming Language Models with Attention Sinks" (Xiao et al. 2023). `mean` is over all rows and heads of
    the body, `lowest` and `highest` are heads; `nowhere` is what a learned sink takes away, 0 where weights sum to 1.
    Rows that see none but the first are left out, as they have no choice.
    """

    traits: ClassVar[Traits] = {"needs": ["weights", "shares"]}

    def __init__(self, *, examples: Annotated[int, "validation examples that are looked at", Range(1)] = 32) -> None:
        self.examples = examples

    def names(self, trial: TrialInfo) -> Sequence[str]:
        return (*SUMMARY, "nowhere")

    def measure(self, model: EvaluatedModel) -> Mapping[str, float | str]:
        first = summary(by_head(model, self.examples, _first))
        return {**first, "nowhere": summary(by_head(model, self.examples, _nowhere))["mean"]}


def _first(weights: Tensor, seen: Seen) -> Tensor:
    """(B, H, T, S) -> (B, H, T)."""
    first = seen.first[:, None, :, None].expand(*weights.shape[:3], 1)
    return weights.gather(-1, first)[..., 0]


def _nowhere(weights: Tensor, seen: Seen) -> Tensor:
    """(B, H, T, S) -> (B, H, T)."""
    return (1 - weights.sum(-1)).clamp(min=0)
