"""How well a model predicts what its own text has said before."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, ClassVar, final

import torch
from torch import Tensor

from paribus import Batch, EvaluatedModel, Measure, Range, Traits, TrialInfo
from paribus_measure.predicted import nats, predicts

NAMES = ("loss", "accuracy", "rest", "share")


@final
class AssociativeRecall(Measure):
    """How well tokens are predicted that came before in the same context, behind the same token: "Zoology" (Arora
    et al. 2023), where most of what architectures without attention lose is lost on these.

    Of the validation split, every token that closes a pair of tokens which the example had before. `loss` and
    `accuracy` are of these, `rest` is the loss of all others, and `share` how many of all they are.
    """

    traits: ClassVar[Traits] = {"sight": "past", "often": True}

    def __init__(self, *, examples: Annotated[int, "validation examples that are looked at", Range(1)] = 64) -> None:
        self.examples = examples

    def names(self, trial: TrialInfo) -> Sequence[str]:
        return NAMES

    def measure(self, model: EvaluatedModel) -> Mapping[str, float | str]:
        sums = torch.zeros(5, dtype=torch.float64, device=model.device)
        for batch in model.batches(self.examples):
            scores = model.logits(batch)
            if scores.shape[:2] != batch.streams["body"].tokens.shape or scores.shape[-1] < model.vocabulary.size:
                return dict.fromkeys(NAMES, "the first objective does not score the tokens of the body")
            again, counted = came_before(batch), predicts(batch)
            hits, rest, lost = again & counted, ~again & counted, nats(model, batch)
            right = scores[:, :-1].argmax(-1) == batch.streams["body"].tokens[:, 1:]
            sums += torch.stack([each.sum().double() for each in (lost * hits, right & hits, hits, lost * rest, rest)])
        loss, right, hits, others, rest = sums.tolist()
        if not hits or not rest:
            return dict.fromkeys(NAMES, f"of what is predicted {int(hits)} tokens came before, and {int(rest)} did not")
        return {"loss": loss / hits, "accuracy": right / hits, "rest": others / rest, "share": hits / (hits + rest)}


def came_before(batch: Batch) -> Tensor:
    """(B, T - 1) bool: whether a token and the next one stood so before, in the same document."""
    body = batch.streams["body"]
    now, later = body.tokens[:, :-1], body.tokens[:, 1:]
    same = (now[:, :, None] == now[:, None, :]) & (later[:, :, None] == later[:, None, :])  # (B, T - 1, T - 1)
    if body.documents is not None:
        here = body.documents[:, :-1]
        same &= here[:, :, None] == here[:, None, :]
    return same.tril(-1).any(-1)
