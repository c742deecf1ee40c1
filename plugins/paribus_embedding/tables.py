"""Lookup, scoring and conversion of embedding tables."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from paribus import ConvertedTensor, Stream, copy_table_rows


class Tables(NamedTuple):
    """Embedding tables of tokens, segments and languages, and a separate head."""

    tokens: nn.Embedding
    segments: nn.Embedding | None
    languages: nn.Embedding | None
    head: nn.Linear | None


def look_up(stream: Stream, tables: Tables, scale: float = 1.0) -> Tensor:
    """Sum the embeddings of tokens (scaled), segments and languages: (B, T) -> (B, T, E).

    Streams without segments or languages use the first, so that all tables have a gradient.
    """
    x: Tensor = tables.tokens(stream.tokens)
    if scale != 1.0:
        x = x * scale
    for table, ids in ((tables.segments, stream.segments), (tables.languages, stream.languages)):
        if table is not None:
            x = x + table(torch.zeros_like(stream.tokens) if ids is None else ids)
    return x


def dropout(x: Tensor, rate: float, training: bool) -> Tensor:
    return functional.dropout(x, rate) if rate and training else x


def score_tokens(
    h: Tensor, tokens: nn.Embedding, head: nn.Linear | None, bias: Tensor | None, soft_cap: float | None = None
) -> Tensor:
    """Score tokens with the head, or with the table if there is none: (…, E) -> (…, V); the bias follows the cap."""
    weight = tokens.weight if head is None else head.weight
    if soft_cap is None:
        return functional.linear(h, weight, bias)
    scores = soft_cap * torch.tanh(functional.linear(h, weight) / soft_cap)
    return scores if bias is None else scores + bias


def convert_tables(target: Tables, source: Tables) -> Mapping[str, ConvertedTensor]:
    """Copy the ids that both vocabularies share; an untied head starts as the tied table."""
    head = source.tokens if source.head is None else source.head
    pairs = {
        "tokens": (target.tokens, source.tokens),
        "segments": (target.segments, source.segments),
        "languages": (target.languages, source.languages),
        "head": (target.head, head),
    }
    converted = {
        f"{name}.weight": weights
        for name, (target_module, source_module) in pairs.items()
        if target_module is not None
        and source_module is not None
        and (weights := copy_table_rows(target_module.weight, source_module.weight)) is not None
    }
    if target.head is not None and source.head is None and target.head.weight.shape == head.weight.shape:
        converted["head.weight"] = ConvertedTensor(head.weight, "tied table")
    return converted
