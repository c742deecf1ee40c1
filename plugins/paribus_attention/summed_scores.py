"""Scores that come from the sum of a query and a key, for `additive` and `mlp-score`."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

MOST = 2**24  # sums at once; more are computed a block of queries at a time, and again in the backward pass


def summed_scores(q: Tensor, k: Tensor, outer: Tensor) -> Tensor:
    """(B, H, T, F), (B, H, S, F), (H, F) -> (B, H, T, S): outer · tanh(q + k), in memory for `MOST` sums.

    Kept for the backward pass, the sums would be F times as many as the scores.
    """
    size = max(1, MOST // k.numel())
    if size >= q.shape[2]:
        return _block(q, k, outer)
    blocks = q.split(size, dim=2)
    if not torch.is_grad_enabled():
        return torch.cat([_block(block, k, outer) for block in blocks], dim=2)
    made = [checkpoint(_block, block, k, outer, use_reentrant=False, preserve_rng_state=False) for block in blocks]
    return torch.cat(made, dim=2)


def _block(q: Tensor, k: Tensor, outer: Tensor) -> Tensor:
    sums = (q.unsqueeze(3) + k.unsqueeze(2)).tanh()  # (B, H, t, S, F)
    return (sums @ outer[:, None, :, None]).squeeze(-1)  # (H, 1, F, 1)
