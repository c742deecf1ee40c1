"""Z-loss of token scores: a penalty on the square of their log-sum-exp, for objectives with a vocabulary head."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Protocol, TypeAlias

import torch
from torch import Tensor

from paribus import IGNORED, Cost, ForwardPass, Load, LossTerm, Range, at_least_float32
from paribus_objective import vocabulary_head

ZWeight: TypeAlias = Annotated[
    float, "weight of the z-loss, the mean square of the log-sum-exp of scores (PaLM: 1e-4)", Range(0)
]


class PenalisedPredictor(vocabulary_head.TokenPredictor, Protocol):
    """Objective whose main loss is the cross-entropy of tokens, with a z-loss of weight `z`."""

    @property
    def z(self) -> float: ...


class PenalisedHead(vocabulary_head.VocabularyHead, Protocol):
    """Modules of such an objective."""

    @property
    def z(self) -> float: ...

    def head_positions(self, length: int) -> int: ...


def terms(z: float) -> Mapping[str, str]:
    """Return the terms of the loss, and their labels in the targets."""
    return {"loss": "labels", "z": "labels"} if z else {"loss": "labels"}


def forward(objective: PenalisedPredictor, run: ForwardPass) -> Mapping[str, LossTerm]:
    """Return the cross-entropy of tokens and the z-loss: "PaLM" (Chowdhery et al. 2022), section 5.

    The z-loss runs the head once more, in chunks of a large vocabulary, as the cross-entropy does.
    """
    loss = vocabulary_head.forward(objective, run)
    if not objective.z:
        return loss
    labels = run.targets["labels"]

    def head(hidden: Tensor) -> Tensor:
        return penalty_logits(objective.logits(hidden, run.unembed))

    first = torch.zeros_like(labels).masked_fill(labels == IGNORED, IGNORED)
    total = run.summed_cross_entropy(head, objective.scored_hidden(run), first, objective.classes)
    return {**loss, "z": LossTerm(total, (labels != IGNORED).sum(), objective.z)}


def penalty_logits(logits: Tensor) -> Tensor:
    """Return logits of two classes, 0 and log(exp(z²) - 1), so that the cross-entropy of the first is z²: (…, C) -> (…,
    2). Here z is the log-sum-exp of the given logits.
    """
    z = at_least_float32(logits).logsumexp(-1)
    square = z.square().clamp(min=torch.finfo(z.dtype).tiny)  # the gradient of log(0) is infinite
    return torch.stack([torch.zeros_like(z), square + torch.log(-torch.expm1(-square))], dim=-1)


def cost(objective: PenalisedHead, load: Load) -> Cost:
    """Return the cost of the head, which a z-loss runs twice."""
    once = vocabulary_head.cost(objective, load)
    return once + once if objective.z else once


def unembed_positions(objective: PenalisedHead, length: int) -> int | None:
    """Return the number of positions scored against the vocabulary; None: all `head_positions`."""
    return 2 * objective.head_positions(length) if objective.z else None
