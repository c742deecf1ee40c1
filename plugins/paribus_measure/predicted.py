"""How well rows predict the token that comes after them."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from paribus import Batch, EvaluatedModel


def nats(subject: EvaluatedModel, batch: Batch) -> Tensor:
    """(B, T - 1) float64: what each row but the last loses on the token of the next one."""
    scores = subject.logits(batch)[:, :-1].double()
    wanted = batch.streams["body"].tokens[:, 1:]
    return functional.cross_entropy(scores.transpose(1, 2), wanted, reduction="none")


def predicts(batch: Batch) -> Tensor:
    """(B, T - 1) bool: which rows have a next one, of their own document, that they do not see."""
    body = batch.streams["body"]
    found = torch.ones_like(body.tokens[:, 1:], dtype=torch.bool)
    if body.documents is not None:
        found &= (body.documents[:, 1:] == body.documents[:, :-1]) & (body.documents[:, 1:] >= 0)
    if body.order is not None:
        found &= body.order[:, 1:] > body.order[:, :-1]
    return found
