"""Associative recall: prediction of tokens that the context has shown before."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, ClassVar, final

import torch
from torch import Tensor

from paribus import Batch, EvaluatedModel, Measure, MeasureTraits, Range, TrialInfo
from paribus_measure.next_token import is_predicted, token_losses

NAMES = ("loss", "accuracy", "rest", "share")


@final
class AssociativeRecall(Measure):
    """Loss and accuracy of tokens that followed the same token earlier in the context: "Zoology" (Arora et al. 2023),
    where these account for most of the gap of architectures without attention.

    These are the second tokens of all repeated pairs in the validation split. `loss` and `accuracy` are theirs, `rest`
    is the loss of all other tokens, and `share` is their share of all tokens.
    """

    traits: ClassVar[MeasureTraits] = {"visibility": "past", "every_evaluation": True}

    def __init__(self, *, examples: Annotated[int, "number of validation examples", Range(1)] = 64) -> None:
        self.examples = examples

    def names(self, trial: TrialInfo) -> Sequence[str]:
        return NAMES

    def measure(self, model: EvaluatedModel) -> Mapping[str, float | str]:
        sums = torch.zeros(5, dtype=torch.float64, device=model.device)
        for batch in model.batches(self.examples):
            scores = model.logits(batch)
            if scores.shape[:2] != batch.streams["body"].tokens.shape or scores.shape[-1] < model.vocabulary.size:
                return dict.fromkeys(NAMES, "the first objective does not score the tokens of the body")
            is_repeat, mask = repeated_pairs(batch), is_predicted(batch)
            repeats, others, losses = is_repeat & mask, ~is_repeat & mask, token_losses(model, batch)
            correct = scores[:, :-1].argmax(-1) == batch.streams["body"].tokens[:, 1:]
            values = (losses * repeats, correct & repeats, repeats, losses * others, others)
            sums += torch.stack([value.sum().double() for value in values])
        loss, correct_count, count, other_loss, other_count = sums.tolist()
        if not count or not other_count:
            reason = f"expected repeated and new tokens, got {int(count)} repeated and {int(other_count)} new"
            return dict.fromkeys(NAMES, reason)
        return {
            "loss": loss / count,
            "accuracy": correct_count / count,
            "rest": other_loss / other_count,
            "share": count / (count + other_count),
        }


def repeated_pairs(batch: Batch) -> Tensor:
    """(B, T - 1) bool: a token and the next one occurred as a pair earlier in the same document."""
    body = batch.streams["body"]
    tokens, next_tokens = body.tokens[:, :-1], body.tokens[:, 1:]
    is_same = (tokens[:, :, None] == tokens[:, None, :]) & (
        next_tokens[:, :, None] == next_tokens[:, None, :]
    )  # (B, T - 1, T - 1)
    if body.documents is not None:
        documents = body.documents[:, :-1]
        is_same &= documents[:, :, None] == documents[:, None, :]
    return is_same.tril(-1).any(-1)
