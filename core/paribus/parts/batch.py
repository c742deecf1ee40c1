"""What the rows of a batch are: three integer vectors a side instead of a T x S mask.

What a row reads in place of its own token, where a model that writes is fed its own words.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

import torch
from torch import Tensor

PADDING = -1  # the document of a row that holds nothing


class TokenLayout(NamedTuple):
    """What each row of one side is; every vector is (B or 1, T) int64."""

    positions: Tensor
    documents: Tensor | None = None  # equal sees equal; negative is padding
    order: Tensor | None = None  # a key is seen iff its order <= the query's; None: the row's index, where causal
    index_positions: Tensor | None = None  # the positions, where these are the rows' own index; None: nobody says so
    segments: Tensor | None = None  # which part of an example it is of; None: all are of one

    def to(self, device: torch.device) -> TokenLayout:
        return TokenLayout(*(None if vector is None else vector.to(device) for vector in self))  # type: ignore[arg-type]  # a NamedTuple loses which field may be None

    def append_copies(self, at: Tensor) -> TokenLayout:
        """These rows, and behind them (B, N) more, each of which is what the row is that `at` says."""
        vectors = (
            None if vector is None else append_copies(vector, at) for vector in self._replace(index_positions=None)
        )
        return TokenLayout(*vectors)  # type: ignore[arg-type]  # as above


def append_copies(vector: Tensor, at: Tensor) -> Tensor:
    """(B|1, T), (B, N) -> (B, T + N): behind all of it, what it has at some places once more."""
    whole = vector.expand(at.shape[0], -1)
    return torch.cat([whole, whole.gather(1, at)], dim=1)


class Stream(NamedTuple):
    """One sequence of tokens a row of the batch, as a stack of the model reads it; all (B, T), but for `asked`."""

    tokens: Tensor
    documents: Tensor | None = None
    positions: Tensor | None = None
    order: Tensor | None = None
    segments: Tensor | None = None
    special: Tensor | None = None  # True where a token is none of the text's: never corrupted, never drawn
    languages: Tensor | None = None
    query_positions: Tensor | None = (
        None  # (B, N): rows that a second stream asks for, which sees what comes before each
    )
    sentences: Tensor | None = None  # which sentence each token is of, where an objective needs to know


class Batch(NamedTuple):
    """What one step trains on. `counts` are those of the whole step, of which this may be a micro-batch."""

    streams: Mapping[str, Stream]
    targets: Mapping[str, Mapping[str, Tensor]]
    index: Tensor  # type: ignore[assignment]  # a tuple has a method of this name
    # (B,): which example of the epoch each row is: corruption is keyed by it
    counts: Mapping[str, Tensor] | None = None
    micro_batches: int = 1  # into how many micro-batches its step was cut


IGNORED = -100  # the label of what is no target: torch's own convention


def token_layout(stream: Stream, past: int = 0) -> TokenLayout:
    """The rows of a stream, whose positions run on from `past` unless it says otherwise."""
    if stream.positions is not None:
        return TokenLayout(stream.positions, stream.documents, stream.order, segments=stream.segments)
    length = stream.tokens.shape[1]
    positions = torch.arange(past, past + length, device=stream.tokens.device).unsqueeze(0)
    return TokenLayout(positions, stream.documents, stream.order, positions, stream.segments)


class StepInput(NamedTuple):
    """What the rows of one place read."""

    tokens: Tensor  # (B,)
    token_weights: Tensor | None = (
        None  # (B, V): what is to be added to those tokens' weights; each row sums to nothing
    )


StepInputFunction = Callable[[int, Tensor], StepInput | None]
"""Of a place, and of what was said at the one before it, (B, R): what is read there; None: the tokens that it has."""
