"""What every table of tokens does, however wide it is."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from paribus import ConvertedTensor, Stream, copy_table_rows


class Tables(NamedTuple):
    """What an embedding has a row in for each token, segment or language."""

    tokens: nn.Embedding
    segments: nn.Embedding | None
    languages: nn.Embedding | None
    head: nn.Linear | None


def looked_up(stream: Stream, tables: Tables, scale: float = 1.0) -> Tensor:
    """(B, T) -> (B, T, E): tokens, scaled, segments and languages. A stream that does not say which is all of the
    first, so that all tables have a gradient."""
    x: Tensor = tables.tokens(stream.tokens)
    if scale != 1.0:
        x = x * scale
    for table, said in ((tables.segments, stream.segments), (tables.languages, stream.languages)):
        if table is not None:
            x = x + table(torch.zeros_like(stream.tokens) if said is None else said)
    return x


def dropped(x: Tensor, rate: float, training: bool) -> Tensor:
    return functional.dropout(x, rate) if rate and training else x


def scored(h: Tensor, tokens: nn.Embedding, head: nn.Linear | None, bias: Tensor | None) -> Tensor:
    """(…, E) -> (…, V), by the table itself where there is no head."""
    return functional.linear(h, tokens.weight if head is None else head.weight, bias)


def kept(ours: Tables, theirs: Tables) -> Mapping[str, ConvertedTensor]:
    """The rows that both have, where a table is longer or shorter; a head that is not tied begins as a tied table."""
    head = theirs.tokens if theirs.head is None else theirs.head
    pairs = {
        "tokens": (ours.tokens, theirs.tokens),
        "segments": (ours.segments, theirs.segments),
        "languages": (ours.languages, theirs.languages),
        "head": (ours.head, head),
    }
    found = {
        f"{name}.weight": made
        for name, (own, other) in pairs.items()
        if own is not None and other is not None and (made := copy_table_rows(own.weight, other.weight)) is not None
    }
    if ours.head is not None and theirs.head is None and ours.head.weight.shape == head.weight.shape:
        found["head.weight"] = ConvertedTensor(head.weight, "the table that was tied")
    return found
