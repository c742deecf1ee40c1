"""What objectives that learn from a teacher have in common: the rows that both read."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from paribus import IGNORED, LossTerm, Problem, SpecError, Stream, TrainingExamples


def all_rows(streams: Mapping[str, Stream]) -> TrainingExamples:
    """Every row of the body that is no padding counts; there is nothing to predict but what the teacher says."""
    body = streams["body"]
    rows = torch.zeros_like(body.tokens, dtype=torch.long)
    if body.documents is not None:
        rows = rows.masked_fill(body.documents < 0, IGNORED)
    return TrainingExamples(streams, {"rows": rows})


def alike(ours: Tensor, theirs: Tensor, what: str, valid: str) -> None:
    """Refuses what cannot be held against the teacher's."""
    if ours.shape != theirs.shape:
        said = f"the teacher {what}: {theirs.shape[-1]}, and the model {ours.shape[-1]}"
        raise SpecError(Problem(code="does-not-fit", path="teacher", message=said, valid=valid))


def summed(losses: Tensor, rows: Tensor, weight: float) -> LossTerm:
    """(B, T) losses, of the rows that count."""
    counted = rows != IGNORED
    return LossTerm(losses.masked_fill(~counted, 0.0).sum(), counted.sum(), weight)
