"""Embeddings of n-grams, in tables that are looked up by hashes of the last tokens."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated

import torch
from torch import Tensor, nn
from torch.nn import functional

from paribus import Range, Stream, TokenLayout, token_layout

PRIME = 2**31 - 1  # products of two smaller numbers fit into 64 bits
MULTIPLIER = 48271  # its powers are the random numbers of Park, Miller and Stockmeyer 1993


@dataclass(frozen=True)
class NGrams:
    """Embeddings of n-grams, which end in the token and are added to it, from tables that hashes look up.

    "Hash Embeddings" (Svenstrup et al. 2017), "Over-Tokenized Transformer" (Huang et al. 2025). An n-gram has the
    tokens at the n - 1 positions before, in the same document. A token of a later order, or of a later index where
    there is no order, counts as absent, as do those before the first position; in bidirectional stacks, too.
    """

    longest: Annotated[int, "tokens of the longest n-grams; 1: none, 2: bigrams, 3: bigrams and trigrams", Range(1)] = 1
    rows: Annotated[int, "rows of each table (with `ngrams.longest` above 1)", Range(1)] = 16384
    hashes: Annotated[
        int, "tables for each n, each with its own hash function (with `ngrams.longest` above 1)", Range(1)
    ] = 1


def ngram_tables(ngrams: NGrams, width: int) -> nn.ModuleList:
    """Return the tables, those of bigrams first."""
    return nn.ModuleList(nn.Embedding(ngrams.rows, width) for _ in _sizes(ngrams))


def _sizes(ngrams: NGrams) -> Iterator[int]:
    """Yield the n of each table."""
    for size in range(2, ngrams.longest + 1):
        for _ in range(ngrams.hashes):
            yield size


def look_up_ngrams(stream: Stream, past: int, ngrams: NGrams, tables: nn.ModuleList) -> Tensor:
    """Return the sum of the embeddings of the n-grams that end at each position: (B, T) -> (B, T, E)."""
    tokens = [stream.tokens + 1, *earlier_tokens(stream.tokens, token_layout(stream, past), ngrams.longest - 1)]
    rows = [hash_rows(tokens[:size], index, ngrams) for index, size in enumerate(_sizes(ngrams))]
    vectors: list[Tensor] = [table(its_rows) for table, its_rows in zip(tables, rows, strict=True)]
    return sum(vectors[1:], vectors[0])


def hash_rows(tokens: list[Tensor], table: int, ngrams: NGrams) -> Tensor:
    """Return the row of each n-gram: the sum of its tokens times random numbers modulo a prime, and bits mixed.

    The last token comes first. Without the mixing, n-grams of small numbers have many more collisions or fewer.
    """
    first = 1 + table * ngrams.longest
    factors = [pow(MULTIPLIER, first + offset, PRIME) for offset in range(len(tokens))]
    terms = [ids * factor % PRIME for ids, factor in zip(tokens, factors, strict=True)]
    total = sum(terms[1:], terms[0]) % PRIME
    return (total ^ (total >> 16)) * pow(MULTIPLIER, 7, PRIME) % PRIME % ngrams.rows


def earlier_tokens(tokens: Tensor, layout: TokenLayout, count: int) -> list[Tensor]:
    """Return the tokens at 1 to `count` positions before each token, plus 1, or 0 where none is seen: (B, T) each."""
    if layout.documents is None and layout.order is None and layout.index_positions is not None:
        shifted = functional.pad(tokens + 1, (count, 0))
        return [shifted[:, count - offset : shifted.shape[1] - offset] for offset in range(1, count + 1)]
    order = torch.arange(tokens.shape[1], device=tokens.device) if layout.order is None else layout.order
    order, keys = order.expand(tokens.shape), _keys(layout, count).expand(tokens.shape)
    sorted_keys, index = keys.sort(dim=1, stable=True)
    earlier: list[Tensor] = []
    for offset in range(1, count + 1):
        wanted = keys - offset
        place = torch.searchsorted(sorted_keys, wanted).clamp(max=tokens.shape[1] - 1)
        source = index.gather(1, place)
        is_seen = (sorted_keys.gather(1, place) == wanted) & (order.gather(1, source) <= order)
        earlier.append(torch.where(is_seen, tokens.gather(1, source) + 1, 0))
    return earlier


def _keys(layout: TokenLayout, gap: int) -> Tensor:
    """Return a number for each document and position: positions are consecutive, and documents `gap` apart."""
    starts = layout.positions - layout.positions.amin() + gap
    if layout.documents is None:
        return starts
    return torch.where(layout.documents < 0, -1, layout.documents * (starts.amax() + 1) + starts)
