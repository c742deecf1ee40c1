"""Batches, streams of tokens, and the layout of tokens: three integer vectors instead of a T x S mask."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

import torch
from torch import Tensor

PADDING = -1  # document of a padding token


class TokenLayout(NamedTuple):
    """Layout of the tokens of a sequence; every vector is (B or 1, T) int64."""

    positions: Tensor  # any integers: packed documents restart at 0, and padding continues the numbering
    documents: Tensor | None = None  # tokens see tokens of the same document; negative: padding
    # Causal: a key is visible if its order <= the query's; None: the index. An order of -1 - n is that of a copy, which
    # sees orders below n, and which only tokens of its own order see.
    order: Tensor | None = None
    index_positions: Tensor | None = None  # the positions, if they equal the index; None: unknown
    segments: Tensor | None = None  # part of the example; None: one part

    def apply(self, change: Callable[[Tensor], Tensor]) -> TokenLayout:
        """Return the layout with every vector that it has changed."""
        return TokenLayout(*(None if vector is None else change(vector) for vector in self))  # type: ignore[arg-type]  # a NamedTuple loses which field may be None

    def span(self, start: int, stop: int) -> TokenLayout:
        """Return the layout of the tokens from `start` to `stop`."""
        return self.apply(lambda vector: vector[:, start:stop])

    def to(self, device: torch.device) -> TokenLayout:
        """Return the layout on a device."""
        return self.apply(lambda vector: vector.to(device))

    def append_copies(self, index: Tensor) -> TokenLayout:
        """Return this layout followed by copies of the tokens at `index`, (B, N)."""
        return self._replace(index_positions=None).apply(lambda vector: append_copies(vector, index))


def append_copies(vector: Tensor, index: Tensor) -> Tensor:
    """Return the vector followed by copies of its values at `index`: (B|1, T), (B, N) -> (B, T + N)."""
    expanded = vector.expand(index.shape[0], -1)
    return torch.cat([expanded, expanded.gather(1, index)], dim=1)


class Stream(NamedTuple):
    """Sequences of tokens as a stack of the model reads them; all (B, T), except `query_positions`."""

    tokens: Tensor  # ids
    documents: Tensor | None = None  # number of each token's document, or PADDING; None: one document, no padding
    positions: Tensor | None = None  # position of each token; None: its index
    order: Tensor | None = None  # as in `TokenLayout`: a token sees those of at most its own order; None: the index
    segments: Tensor | None = None  # segment of each token, as in pairs of sentences; None: one segment
    special: Tensor | None = None  # True: not part of the text, never corrupted or drawn
    languages: Tensor | None = None  # language of each token, as a number of the corpus
    query_positions: Tensor | None = None  # (B, N): positions of the queries of a second stream
    sentences: Tensor | None = None  # sentence of each token, if an objective needs it

    def apply(self, change: Callable[[Tensor], Tensor]) -> Stream:
        """Return the stream with every vector that it has changed."""
        return Stream(*(None if vector is None else change(vector) for vector in self))  # type: ignore[arg-type]  # as above

    def span(self, start: int, stop: int) -> Stream:
        """Return the tokens from `start` to `stop`."""
        return self.apply(lambda vector: vector[:, start:stop])


class Batch(NamedTuple):
    """Batch of one step or micro-batch. `counts` are those of the whole step."""

    streams: Mapping[str, Stream]  # by the path of the part that reads them; `body` is always there
    targets: Mapping[str, Mapping[str, Tensor]]  # of each objective, by its name
    # (B,): example of the epoch in each row of the batch; the key of its corruption
    index: Tensor  # type: ignore[assignment]  # a tuple has a method of this name
    counts: Mapping[str, Tensor] | None = None  # number of labels of each term of the loss, in the whole step
    micro_batches: int = 1  # number of micro-batches of its step

    def rows(self, rows: slice | Tensor | list[int]) -> Batch:
        """Return a batch of some examples, which may repeat, by itself: not as a share of a step."""
        streams = {path: stream.apply(lambda vector: vector[rows]) for path, stream in self.streams.items()}
        targets = {name: {key: value[rows] for key, value in labels.items()} for name, labels in self.targets.items()}
        return Batch(streams, targets, self.index[rows])


IGNORED = -100  # label of a position without a target, as in torch


def token_layout(stream: Stream, past: int = 0) -> TokenLayout:
    """Return the layout of a stream. Its positions continue from `past` unless the stream sets them."""
    if stream.positions is not None:
        return TokenLayout(stream.positions, stream.documents, stream.order, segments=stream.segments)
    length = stream.tokens.shape[1]
    positions = torch.arange(past, past + length, device=stream.tokens.device).unsqueeze(0)
    return TokenLayout(positions, stream.documents, stream.order, positions, stream.segments)


class StepInput(NamedTuple):
    """Input of the model at one position."""

    tokens: Tensor  # (B,): ids
    token_weights: Tensor | None = None  # (B, V): added to the one-hot weights of the tokens; sums to 0


StepInputFunction = Callable[[int, Tensor], StepInput | None]
"""Function of a position and the hidden states of the position before, (B, R): input there; None: its own tokens."""
