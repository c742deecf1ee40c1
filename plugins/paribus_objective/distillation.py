"""Shared parts of distillation: the positions that count, the shape check, and the weighted loss."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from paribus import IGNORED, Draw, LossTerm, Problem, SpecError, Stream, TrainingExamples


def mark_positions(
    objective: object, streams: Mapping[str, Stream], targets: Mapping[str, Tensor], draw: Draw
) -> TrainingExamples:
    """Mark every position of the body except padding; there are no labels, only the teacher's outputs."""
    body = streams["body"]
    counted = torch.zeros_like(body.tokens, dtype=torch.long)
    if body.documents is not None:
        counted = counted.masked_fill(body.documents < 0, IGNORED)
    return TrainingExamples(streams, {"counted": counted})


def every_position(objective: object, length: int) -> int:
    """Return the number of positions with a loss."""
    return length


def check_same_shape(student: Tensor, teacher: Tensor, quantity: str, valid: str) -> None:
    """Raise a SpecError if the student's and the teacher's outputs cannot be compared."""
    if student.shape != teacher.shape:
        message = f"{quantity} differ: {teacher.shape[-1]} in the teacher, {student.shape[-1]} in the model"
        raise SpecError(Problem(code="does-not-fit", path="teacher", message=message, valid=valid))


def weighted_loss(losses: Tensor, counted: Tensor, weight: float) -> LossTerm:
    """Sum the losses, (B, T), of the positions that count."""
    mask = counted != IGNORED
    return LossTerm(losses.masked_fill(~mask, 0.0).sum(), mask.sum(), weight)
