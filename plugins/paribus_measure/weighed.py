"""What the measures of attention share: its weights, and whom each row might weigh."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

import torch
from torch import Tensor

from paribus import Batch, EvaluatedModel, TokenLayout, Visibility, token_layout, visibility_mask, with_order


class Seen(NamedTuple):
    """Whom a row might weigh, were there no window: all of its document, or those up to itself."""

    first: Tensor  # (B|1, T): the first row of these
    among: Tensor  # (B|1, T): how many they are


SUMMARY: Final = ("mean", "lowest", "highest")

Value = Callable[[Tensor, Seen], Tensor]


def by_head(subject: EvaluatedModel, examples: int, value: Value) -> Tensor | None:
    """(N,): the mean of a value over rows for each head of each layer; None where no row weighs two others.

    `value` is given the weights of a layer, (B, H, T, S), and gives one number a row, (B, H, T). Padding is no row, and
    one that can see but a single row has nothing to weigh.
    """
    totals: list[Tensor] = []
    rows = torch.zeros((), dtype=torch.float64, device=subject.device)
    for batch in subject.batches(examples):
        layers = subject.attention_weights(batch)
        seen = seen_by(batch, layers[0].shape[-1], causal=subject.shape.causal)
        counted = (seen.among > 1)[:, None].expand(layers[0].shape[0], 1, -1)  # (B, 1, T)
        sums = [(value(weights.double(), seen) * counted).sum((0, 2)) for weights in layers]
        rows = rows + counted.sum()
        totals = [total + more for total, more in zip(totals, sums, strict=True)] if totals else sums
    return torch.cat(totals) / rows if totals and int(rows) else None


def seen_by(batch: Batch, length: int, *, causal: bool) -> Seen:
    """The rows of the body that each of its rows might see."""
    body = batch.streams["body"]
    if body.tokens.shape[1] == length:
        rows = with_order(token_layout(body))
    else:  # an image, whose rows are not its tokens
        rows = TokenLayout(torch.arange(length, device=body.tokens.device)[None], order=torch.arange(length)[None])
    seen = visibility_mask(Visibility(causal=causal or body.order is not None), rows, rows)  # (B|1, 1, T, T)
    if seen is None:
        seen = torch.ones(1, 1, length, length, dtype=torch.bool, device=body.tokens.device)
    seen_BTS = seen[:, 0]
    return Seen(seen_BTS.int().argmax(-1), seen_BTS.sum(-1))


def summary(heads: Tensor | None) -> dict[str, float | str]:
    """The mean over heads, and the heads at both ends."""
    if heads is None:
        return dict.fromkeys(SUMMARY, "there is no row that could weigh two")
    return {"mean": float(heads.mean()), "lowest": float(heads.min()), "highest": float(heads.max())}
