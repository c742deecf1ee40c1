"""Windows around a place of the keys that each query has for itself, for `local-m` and `local-p`."""

from __future__ import annotations

import torch
from torch import Tensor

from paribus import Context, ScoreFunctions, Visibility, visibility_mask, with_order


def around(centre: Tensor, ctx: Context, reach: int, *, falling: bool) -> ScoreFunctions:
    """(B|1, T): keys further than `reach` from a query's centre are not scored, and where they are `falling`, weights
    fall off from it as a normal density does whose deviation is half of that. They do not sum to 1 again."""
    away = ctx.keys.positions.unsqueeze(1) - centre.unsqueeze(-1)  # (B|1, T, S)
    near = (away.abs() <= reach).unsqueeze(1)
    share = near if not falling else near * torch.exp(-2 * (away / reach).square()).unsqueeze(1)

    def before(scores: Tensor) -> Tensor:
        # Finite, not -inf: a query that is near no key would be 0/0.
        return scores.masked_fill(~near, torch.finfo(scores.dtype).min)

    return ScoreFunctions(before=before, after=lambda weights: weights * share)


def lengths(ctx: Context, sight: Visibility) -> Tensor:
    """(B|1, T|1): how many keys each query sees."""
    seen = visibility_mask(sight, with_order(ctx.rows, ctx.past), with_order(ctx.keys))
    if seen is None:
        return torch.full_like(ctx.rows.positions[:, :1], ctx.keys.positions.shape[-1])
    return seen.squeeze(1).sum(-1)
