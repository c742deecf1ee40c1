"""Which tokens are predicted, and what stands in their place: whole batches at a time, each row keyed by itself."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, NamedTuple, final

import numpy as np
import torch
from torch import Tensor

from paribus import IGNORED, Draw, Range, Stream, Vocabulary
from paribus_objective import specials

Rate = Annotated[float, "share of a text's tokens that are predicted", Range(above=0, high=1)]
Mask = Annotated[float, "share of these that the mask token stands in for", Range(0, 1)]
Random = Annotated[float, "share of these that a random token stands in for", Range(0, 1)]

Array = np.ndarray[tuple[int, ...], np.dtype[Any]]


class Picked(NamedTuple):
    """Which rows are predicted. Those of an example are distinct, and those that are left over are of it as well."""

    rows: Array  # (B, N)
    left: Array  # (B, N) bool: which of the N places are left over, behind all others
    draws: Array | None = None  # (B, N): which draw decides what is shown in each place; None: each has its own


@dataclass(frozen=True)
class OverTime:
    """How masks change while a model is trained."""

    masks: Annotated[
        int | None,
        "masks of a text, in turn (BERT: 10; 1: always the same); null: a new one each epoch",
        Range(1),
    ] = None
    rate: Annotated[
        float | None,
        "what `rate` goes to, evenly, until `trainer.max_steps`, and what is evaluated at; null: it stays",
        Range(above=0, high=1),
    ] = None

    def draw(self, draw: Draw) -> Draw:
        """The draw of the mask whose turn it is; what is evaluated has one of its own."""
        if self.masks is None or draw.epoch < 0:
            return draw
        return Draw(draw.seed, draw.epoch % self.masks, draw.index, draw.progress)

    def at(self, rate: float, draw: Draw) -> float:
        """What `rate` has come to."""
        return rate if self.rate is None else rate + (self.rate - rate) * draw.progress

    def most(self, rate: float) -> float:
        """The highest that it is ever."""
        return rate if self.rate is None else max(rate, self.rate)


@final
class Masking:
    """Hides `rate` of a text's tokens: most behind the mask token, some behind a random one, some behind themselves.

    `pick` says which: of what is no text, (B, T) bool, the stream, the rate and the most that there is room for.
    """

    def __init__(
        self,
        vocabulary: Vocabulary,
        rate: float,
        mask: float,
        random: float,
        pick: Pick | None = None,
        over_time: OverTime = OverTime(),
    ) -> None:
        if mask + random > 1 + 1e-9:
            raise ValueError(f"`mask` ({mask:g}) and `random` ({random:g}) are shares of one whole; valid: a sum ≤ 1")
        self.rate, self.mask, self.random = rate, mask, random
        self.pick = pick or one_by_one
        self.over_time = over_time
        self.token = specials.needed(vocabulary, "mask", "masking")
        self.reserved = specials.table(vocabulary)
        self.words = np.flatnonzero(~self.reserved[: vocabulary.size])

    def __call__(self, stream: Stream, most: int, draw: Draw) -> tuple[Stream, Tensor, Tensor]:
        """The stream with some tokens hidden, which of its rows they are, (B, N), and what they were, (B, N)."""
        tokens: Array = stream.tokens.numpy()
        rate, draw = self.over_time.at(self.rate, draw), self.over_time.draw(draw)
        pick, left, draws = self.pick(self.outside(stream), stream, rate, most, draw)
        labels = np.take_along_axis(tokens, pick, axis=1)
        hidden = tokens.copy()
        np.put_along_axis(hidden, pick, np.where(left, labels, self.shown(labels, draws, draw)), axis=1)
        labels[left] = IGNORED
        return stream._replace(tokens=torch.from_numpy(hidden)), torch.from_numpy(pick), torch.from_numpy(labels)

    def most(self, length: int) -> int:
        """How many tokens of a text of `length` there is room for."""
        return min(length, max(1, math.ceil(self.over_time.most(self.rate) * length)))

    def outside(self, stream: Stream) -> Array:
        """(B, T) bool: what is no text and stays as it is, that is special tokens and padding."""
        return specials.outside(stream, self.reserved)

    def shown(self, labels: Array, draws: Array | None, draw: Draw) -> Array:
        """(B, N) -> (B, N): what is shown in the place of each token. A random token may happen to be the same."""
        fate = draw.uniform("fate", labels.shape[1]).numpy()
        if draws is not None:
            fate = np.take_along_axis(fate, draws, axis=1)
        shown = np.where(fate < self.mask, self.token, labels)
        swapped = (fate >= self.mask) & (fate < self.mask + self.random)
        other = draw.below("other", len(self.words), labels.shape[1]).numpy()
        shown[swapped] = self.words[other[swapped]]
        return shown


Pick = Callable[[Array, Stream, float, int, Draw], Picked]


def one_by_one(outside: Array, stream: Stream, rate: float, most: int, draw: Draw) -> Picked:
    """Every set of as many tokens is as likely."""
    text = outside.shape[1] - outside.sum(axis=1)
    left = np.arange(most) >= share(text, rate, most, draw)[:, None]
    return Picked(first(draw.uniform("pick", outside.shape[1]), most, outside), left)


def share(text: Array, rate: float, most: int, draw: Draw) -> Array:
    """(B,): how many tokens of each text are predicted: `rate` of them, rounded up or down at random so that the
    expected share is exact, and at least one where there is any."""
    rounded = np.floor(text * rate + draw.uniform("share", 1)[:, 0].numpy()).astype(np.int64)
    kept: Array = np.minimum(np.maximum(rounded, 1), np.minimum(text, most))
    return kept


def first(luck: Tensor, most: int, outside: Array | None = None) -> Array:
    """(B, T) -> (B, N): the indices of the `most` smallest of each row in order, those outside behind all others."""
    keys = luck.numpy().view(np.int32).astype(np.int64)  # floats ≥ 0 are ordered as their bits are
    keys <<= 32
    keys += np.arange(keys.shape[1])
    if outside is not None:
        keys[outside] |= 1 << 62
    if most < keys.shape[1]:
        keys.partition(most, axis=1)  # and then sorting those few: four times faster than argsort or topk
    return np.sort(keys[:, :most], axis=1) & 0xFFFFFFFF


def rows(hidden: Tensor, pick: Tensor) -> Tensor:
    """(B, T, D), (B, N) -> (B, N, D): a gather of fixed size, which a GPU need not wait for."""
    return hidden.gather(1, pick.unsqueeze(-1).expand(-1, -1, hidden.shape[-1]))
