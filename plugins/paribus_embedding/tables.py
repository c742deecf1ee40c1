"""What every table of tokens does, however wide it is."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from paribus import Stream


def looked_up(stream: Stream, tokens: nn.Embedding, segments: nn.Embedding | None, scale: float = 1.0) -> Tensor:
    """(B, T) -> (B, T, E): tokens, scaled, and segments. A stream without any is of segment 0, so that all tables have
    a gradient."""
    x: Tensor = tokens(stream.tokens)
    if scale != 1.0:
        x = x * scale
    if segments is not None:
        x = x + segments(stream.segments if stream.segments is not None else torch.zeros_like(stream.tokens))
    return x


def dropped(x: Tensor, rate: float, training: bool) -> Tensor:
    return functional.dropout(x, rate) if rate and training else x


def scored(h: Tensor, tokens: nn.Embedding, head: nn.Linear | None, bias: Tensor | None) -> Tensor:
    """(…, E) -> (…, V), by the table itself where there is no head."""
    return functional.linear(h, tokens.weight if head is None else head.weight, bias)
