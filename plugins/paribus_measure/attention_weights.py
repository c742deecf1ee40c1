"""Attention weights of a model, averaged by head, and the tokens that each token may attend to."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

import torch
from torch import Tensor

from paribus import Batch, EvaluatedModel, TokenLayout, Visibility, token_layout, visibility_mask, with_order


class VisibleTokens(NamedTuple):
    """Tokens that a token may attend to without a window: all of its document, or those up to itself."""

    first: Tensor  # (B|1, T): position of the first
    total: Tensor  # (B|1, T): their number


SUMMARY: Final = ("mean", "lowest", "highest")

Statistic = Callable[[Tensor, VisibleTokens], Tensor]


def mean_by_head(model: EvaluatedModel, examples: int, statistic: Statistic) -> Tensor | None:
    """(N,): mean of a statistic over tokens for each head of each layer; None if no token counts.

    `statistic` maps the weights of a layer, (B, H, T, S), to a number per token, (B, H, T). Padding does not count, nor
    does a token that sees only one token.
    """
    totals: list[Tensor] = []
    token_count = torch.zeros((), dtype=torch.float64, device=model.device)
    for batch in model.batches(examples):
        layers = model.attention_weights(batch)
        visible = visible_tokens(batch, layers[0].shape[-1], causal=model.shape.causal)
        mask = (visible.total > 1)[:, None].expand(layers[0].shape[0], 1, -1)  # (B, 1, T)
        sums = [(statistic(weights.double(), visible) * mask).sum((0, 2)) for weights in layers]
        token_count = token_count + mask.sum()
        totals = [total + increment for total, increment in zip(totals, sums, strict=True)] if totals else sums
    return torch.cat(totals) / token_count if totals and int(token_count) else None


def visible_tokens(batch: Batch, length: int, *, causal: bool) -> VisibleTokens:
    """Return the tokens of the body that each of its tokens may attend to."""
    body = batch.streams["body"]
    if body.tokens.shape[1] == length:
        layout = with_order(token_layout(body))
    else:  # an image, whose patches are not its tokens
        index = torch.arange(length, device=body.tokens.device)[None]
        layout = TokenLayout(index, order=index)
    mask = visibility_mask(Visibility(causal=causal or body.order is not None), layout, layout)  # (B|1, 1, T, T)
    if mask is None:
        mask = torch.ones(1, 1, length, length, dtype=torch.bool, device=body.tokens.device)
    mask = mask[:, 0]  # (B|1, T, T)
    return VisibleTokens(mask.int().argmax(-1), mask.sum(-1))


def summarize(heads: Tensor | None) -> dict[str, float | str]:
    """Return the mean over heads, and the heads with the lowest and the highest value."""
    if heads is None:
        return dict.fromkeys(SUMMARY, "no token sees two tokens")
    return {"mean": float(heads.mean()), "lowest": float(heads.min()), "highest": float(heads.max())}
