"""Context gain: how much lower the loss of late tokens is than that of early ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, ClassVar, final

import torch
from torch.nn import functional

from paribus import EvaluatedModel, Measure, MeasureTraits, Range, TrialInfo, hookimpl

NAMES = ("early", "late", "gain")


@final
class ContextGain(Measure):
    """Loss of tokens with little context minus that of tokens with much, after the in-context learning score of
    "In-context Learning and Induction Heads" (Olsson et al. 2022).

    `early` is the mean loss, in nats, of the tokens that are predicted from at most `share` of `dims.length` tokens of
    their document, `late` that of all others, and `gain` their difference: positive if context helps.
    """

    traits: ClassVar[MeasureTraits] = {"visibility": "past"}

    def __init__(
        self,
        *,
        examples: Annotated[int, "number of validation examples", Range(1)] = 64,
        share: Annotated[float, "largest context of an early token, in lengths of an example", Range(0, 1)] = 0.5,
    ) -> None:
        self.examples = examples
        self.share = share

    def names(self, trial: TrialInfo) -> Sequence[str]:
        return NAMES

    def measure(self, model: EvaluatedModel) -> Mapping[str, float | str]:
        sums = torch.zeros(4, dtype=torch.float64, device=model.device)
        for batch in model.batches(self.examples):
            scores, body = model.logits(batch), batch.streams["body"]
            if scores.shape[:2] != body.tokens.shape or scores.shape[-1] < model.vocabulary.size:
                return dict.fromkeys(NAMES, "the first objective does not score the tokens of the body")
            losses = functional.cross_entropy(
                scores[:, :-1].double().transpose(1, 2), body.tokens[:, 1:], reduction="none"
            )  # (B, T - 1)
            mask = torch.ones_like(losses, dtype=torch.bool)
            context = torch.arange(1, body.tokens.shape[1], device=model.device).expand_as(losses)
            if body.documents is not None:
                mask = (body.documents[:, 1:] == body.documents[:, :-1]) & (body.documents[:, 1:] >= 0)
                same = body.documents[:, :-1, None] == body.documents[:, None, :-1]  # (B, T - 1, T - 1)
                context = same.tril().sum(-1)  # number of tokens of the document so far
            if body.order is not None:
                mask = mask & (body.order[:, 1:] > body.order[:, :-1])
            is_early = context <= self.share * model.trial.length
            early, late = mask & is_early, mask & ~is_early
            values = (losses * early, early, losses * late, late)
            sums += torch.stack([value.sum().double() for value in values])
        early_loss, early_count, late_loss, late_count = sums.tolist()
        if not early_count or not late_count:
            reason = f"expected early and late tokens, got {int(early_count)} and {int(late_count)}"
            return dict.fromkeys(NAMES, reason)
        early_mean, late_mean = early_loss / early_count, late_loss / late_count
        return {"early": early_mean, "late": late_mean, "gain": early_mean - late_mean}


@hookimpl
def measure() -> Mapping[str, type[Measure]]:
    return {"context-gain": ContextGain}
