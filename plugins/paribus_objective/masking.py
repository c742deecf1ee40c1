"""Token masking: select the tokens to predict and replace them; each example draws from its own key."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, NamedTuple, Protocol, final

import numpy as np
import torch
from torch import Tensor

from paribus import IGNORED, Draw, Range, Stream, TrainingExamples, Vocabulary
from paribus_objective import special_tokens

Rate = Annotated[float, "share of the text's tokens that are predicted", Range(above=0, high=1)]
Mask = Annotated[float, "share of the predicted tokens that are replaced by the mask token", Range(0, 1)]
Random = Annotated[float, "share of the predicted tokens that are replaced by a random token", Range(0, 1)]

Array = np.ndarray[tuple[int, ...], np.dtype[Any]]


class Selection(NamedTuple):
    """Distinct positions to predict, N in each example; unused slots come last and hold other positions of the same
    example."""

    positions: Array  # (B, N)
    unused: Array  # (B, N) bool: slots beyond the number of tokens that this example predicts
    groups: Array | None = None  # (B, N): slots of one group share the draw of their replacement; None: one each


@dataclass(frozen=True)
class MaskSchedule:
    """Change of the masks during training."""

    masks: Annotated[
        int | None,
        "number of masks of a text, used in turn (BERT: 10; 1: static); null: a new mask each epoch",
        Range(1),
    ] = None
    final_rate: Annotated[
        float | None,
        "`rate` at `trainer.max_steps`, reached linearly, and in evaluation; null: `rate` is constant",
        Range(above=0, high=1),
    ] = None

    def draw(self, draw: Draw) -> Draw:
        """Return the draw of the current mask; evaluation has its own."""
        if self.masks is None or draw.epoch < 0:
            return draw
        return Draw(draw.seed, draw.epoch % self.masks, draw.index, draw.progress)

    def current_rate(self, rate: float, draw: Draw) -> float:
        return rate if self.final_rate is None else rate + (self.final_rate - rate) * draw.progress

    def maximum_rate(self, rate: float) -> float:
        return rate if self.final_rate is None else max(rate, self.final_rate)


@final
class Masking:
    """Replacement of a share of a text's tokens by the mask token, by a random token, or by themselves.

    `select` chooses the positions from the non-text mask, (B, T) bool, the stream, the rate and the number of slots.
    """

    def __init__(
        self,
        vocabulary: Vocabulary,
        rate: float,
        mask: float,
        random: float,
        select: Select | None = None,
        schedule: MaskSchedule = MaskSchedule(),
    ) -> None:
        if mask + random > 1 + 1e-9:
            raise ValueError(f"expected `mask` + `random` ≤ 1, got {mask:g} + {random:g}")
        self.rate, self.mask, self.random = rate, mask, random
        self.select = select or select_single_tokens
        self.schedule = schedule
        self.token = special_tokens.require(vocabulary, "mask", "masking")
        self.reserved = special_tokens.reserved_ids(vocabulary)
        self.words = np.flatnonzero(~self.reserved[: vocabulary.size])

    def __call__(self, stream: Stream, slots: int, draw: Draw) -> tuple[Stream, Tensor, Tensor]:
        """Return the masked stream, the positions to predict, (B, N), and their labels, (B, N)."""
        tokens: Array = stream.tokens.numpy()
        rate, draw = self.schedule.current_rate(self.rate, draw), self.schedule.draw(draw)
        positions, unused, groups = self.select(self.non_text(stream), stream, rate, slots, draw)
        labels = np.take_along_axis(tokens, positions, axis=1)
        masked = tokens.copy()
        np.put_along_axis(masked, positions, np.where(unused, labels, self.replacements(labels, groups, draw)), axis=1)
        labels[unused] = IGNORED
        return stream._replace(tokens=torch.from_numpy(masked)), torch.from_numpy(positions), torch.from_numpy(labels)

    def slots(self, length: int) -> int:
        """Return the maximum number of predicted tokens of a text of `length` tokens."""
        return min(length, max(1, math.ceil(self.schedule.maximum_rate(self.rate) * length)))

    def non_text(self, stream: Stream) -> Array:
        """(B, T) bool: special tokens and padding."""
        return special_tokens.non_text(stream, self.reserved)

    def replacements(self, labels: Array, groups: Array | None, draw: Draw) -> Array:
        """(B, N) -> (B, N): the inputs at the predicted positions. A random token may equal the original."""
        fate = draw.uniform("fate", labels.shape[1]).numpy()
        if groups is not None:
            fate = np.take_along_axis(fate, groups, axis=1)
        inputs = np.where(fate < self.mask, self.token, labels)
        is_random = (fate >= self.mask) & (fate < self.mask + self.random)
        random_words = draw.below("other", len(self.words), labels.shape[1]).numpy()
        inputs[is_random] = self.words[random_words[is_random]]
        return inputs


Select = Callable[[Array, Stream, float, int, Draw], Selection]


def select_single_tokens(non_text: Array, stream: Stream, rate: float, slots: int, draw: Draw) -> Selection:
    """Select tokens independently of each other; every subset of the same size is equally likely."""
    text_length = non_text.shape[1] - non_text.sum(axis=1)
    unused = np.arange(slots) >= selected_count(text_length, rate, slots, draw)[:, None]
    return Selection(smallest(draw.uniform("pick", non_text.shape[1]), slots, non_text), unused)


def selected_count(text_length: Array, rate: float, limit: int, draw: Draw) -> Array:
    """(B,): number of tokens to predict in each text: `rate` of them, rounded up or down at random so that the
    expected share is exact, and at least one in a text that is not empty."""
    rounded = np.floor(text_length * rate + draw.uniform("share", 1)[:, 0].numpy()).astype(np.int64)
    count: Array = np.minimum(np.maximum(rounded, 1), np.minimum(text_length, limit))
    return count


def smallest(values: Tensor, count: int, excluded: Array | None = None) -> Array:
    """(B, T) -> (B, N): indices of the `count` smallest values ≥ 0 of each example in order; excluded ones are last."""
    keys = values.numpy().view(np.int32).astype(np.int64)  # floats ≥ 0 are ordered as their bits are
    keys <<= 32
    keys += np.arange(keys.shape[1])
    if excluded is not None:
        keys[excluded] |= 1 << 62
    if count < keys.shape[1]:
        keys.partition(count, axis=1)  # followed by a sort of those few: four times faster than argsort or topk
    return np.sort(keys[:, :count], axis=1) & 0xFFFFFFFF


def gather(hidden: Tensor, positions: Tensor) -> Tensor:
    """(B, T, D), (B, N) -> (B, N, D); the size is static, so a GPU need not synchronize."""
    return hidden.gather(1, positions.unsqueeze(-1).expand(-1, -1, hidden.shape[-1]))


class HasMasking(Protocol):
    """Objective that masks tokens of the body."""

    @property
    def masking(self) -> Masking: ...


def corrupt(
    objective: HasMasking, streams: Mapping[str, Stream], targets: Mapping[str, Tensor], draw: Draw
) -> TrainingExamples:
    """Mask the body, and return the masked positions as `pick` and their tokens as `labels`."""
    body = streams["body"]
    masked, positions, labels = objective.masking(body, objective.masking.slots(body.tokens.shape[1]), draw)
    return TrainingExamples({**streams, "body": masked}, {"pick": positions, "labels": labels})


def head_positions(objective: HasMasking, length: int) -> int:
    """Return the number of masked positions."""
    return objective.masking.slots(length)
