"""Scores computed from the sum of a query and a key, for `additive` and `mlp-score`."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

MAX_SUMS = 2**24  # sums in memory; beyond it, blocks of queries are computed one by one, and again in the backward pass


def additive_scores(q: Tensor, k: Tensor, outer: Tensor) -> Tensor:
    """Return outer · tanh(q + k) within `MAX_SUMS` sums of memory: (B, H, T, F), (B, H, S, F), (H, F) -> (B, H, T, S).

    Saving the sums for the backward pass would take F times the memory of the scores.
    """
    size = max(1, MAX_SUMS // k.numel())
    if size >= q.shape[2]:
        return _block(q, k, outer)
    blocks = q.split(size, dim=2)
    if not torch.is_grad_enabled():
        return torch.cat([_block(block, k, outer) for block in blocks], dim=2)
    scores = [checkpoint(_block, block, k, outer, use_reentrant=False, preserve_rng_state=False) for block in blocks]
    return torch.cat(scores, dim=2)


def _block(q: Tensor, k: Tensor, outer: Tensor) -> Tensor:
    sums = (q.unsqueeze(3) + k.unsqueeze(2)).tanh()  # (B, H, t, S, F)
    return (sums @ outer[:, None, :, None]).squeeze(-1)  # (H, 1, F, 1)
