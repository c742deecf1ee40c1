"""Scoring in a window around a centre that each query has, for `local-m` and `local-p`."""

from __future__ import annotations

import torch
from torch import Tensor

from paribus import Context, ScoreFunctions, Visibility


def local_scoring(centre: Tensor, ctx: Context, reach: int, *, gaussian: bool) -> ScoreFunctions:
    """Return a scoring that masks keys further than `reach` from a query's centre (B|1, T).

    With `gaussian`, weights are multiplied by a Gaussian around the centre with a standard deviation of reach / 2; they
    are not normalised again.
    """
    distance = ctx.key_layout.positions.unsqueeze(1) - centre.unsqueeze(-1)  # (B|1, T, S)
    in_window = (distance.abs() <= reach).unsqueeze(1)
    factor = in_window if not gaussian else in_window * torch.exp(-2 * (distance / reach).square()).unsqueeze(1)

    def before(scores: Tensor) -> Tensor:
        # Finite, not -inf: a query without a key in its window would be 0/0.
        return scores.masked_fill(~in_window, torch.finfo(scores.dtype).min)

    return ScoreFunctions(map_scores=before, map_weights=lambda weights: weights * factor)


def visible_key_counts(ctx: Context, visibility: Visibility) -> Tensor:
    """Return how many keys each query sees, (B|1, T|1)."""
    mask = ctx.mask(visibility)
    if mask is None:
        return torch.full_like(ctx.layout.positions[:, :1], ctx.key_layout.positions.shape[-1])
    return mask.squeeze(1).sum(-1)
