"""Z-loss of token scores: a penalty on the square of their log-sum-exp, for objectives with a vocabulary head."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Protocol, TypeAlias

from paribus import ForwardPass, LossTerm, Range
from paribus_objective import scoring, vocabulary_head

ZWeight: TypeAlias = Annotated[
    float, "weight of the z-loss, the mean square of the log-sum-exp of scores (PaLM: 1e-4)", Range(0)
]


class PenalisedPredictor(vocabulary_head.TokenPredictor, Protocol):
    """Objective whose main loss is the cross-entropy of tokens, with a z-loss of weight `z`."""

    @property
    def z(self) -> float: ...


def terms(z: float) -> dict[str, str]:
    """Return the terms of the loss, and their labels in the targets."""
    return {"loss": "labels", "z": "labels"} if z else {"loss": "labels"}


def forward(objective: PenalisedPredictor, run: ForwardPass) -> Mapping[str, LossTerm]:
    """Return the cross-entropy of tokens and the z-loss: "PaLM" (Chowdhery et al. 2022), section 5."""
    if not objective.z:
        return vocabulary_head.forward(objective, run)
    return scoring.penalised_cross_entropy(*vocabulary_head.labelled(objective, run), z=objective.z)
