"""The slot `embedding`: from tokens to rows, and from rows back to scores over tokens."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import ClassVar, Protocol

from torch import Tensor, nn

from paribus.parts.rows import Rows, Stream
from paribus.slots.component import Component, Cost, Load

Place = Callable[[Tensor, Tensor], Tensor]


class Unembed(Protocol):
    """How a head scores rows against the vocabulary: an embedding's `unembed`, bound."""

    def __call__(self, h: Tensor, bias: Tensor | None = None) -> Tensor: ...


class Embedding(Component, nn.Module, ABC):
    """Makes rows of a stream, and scores rows against its vocabulary.

    `place` is what the position adds, (B, T, D) and positions -> (B, T, D); the embedding says when (BERT: before its
    norm). Heads call `unembed`, never a weight, so that tying, factorising and scaling stay in one place.
    """

    injects: ClassVar[tuple[str, ...]] = ("shape", "norm")

    @abstractmethod
    def forward(self, stream: Stream, past: int, place: Place) -> tuple[Tensor, Rows]:
        """(B, T) -> (B, T, D), and what each row is."""

    @abstractmethod
    def unembed(self, h: Tensor, bias: Tensor | None = None) -> Tensor:
        """(…, D) -> (…, V), with an objective's bias of the vocabulary, (V,), where it has one."""

    @abstractmethod
    def cost(self, load: Load) -> Cost:
        """What `unembed` does for `load.picks` rows; a look-up counts as nothing."""
