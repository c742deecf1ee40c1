"""Losses of next-token prediction."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from paribus import Batch, EvaluatedModel


def token_losses(model: EvaluatedModel, batch: Batch) -> Tensor:
    """(B, T - 1) float64: loss in nats of the next token, at every position but the last."""
    scores = model.logits(batch)[:, :-1].double()
    next_tokens = batch.streams["body"].tokens[:, 1:]
    return functional.cross_entropy(scores.transpose(1, 2), next_tokens, reduction="none")


def is_predicted(batch: Batch) -> Tensor:
    """(B, T - 1) bool: the next token exists in the same document and is not visible."""
    body = batch.streams["body"]
    mask = torch.ones_like(body.tokens[:, 1:], dtype=torch.bool)
    if body.documents is not None:
        mask &= (body.documents[:, 1:] == body.documents[:, :-1]) & (body.documents[:, 1:] >= 0)
    if body.order is not None:
        mask &= body.order[:, 1:] > body.order[:, :-1]
    return mask
