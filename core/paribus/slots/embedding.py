"""The slot `embedding`: from tokens to rows, and from rows back to scores over tokens."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import ClassVar, Literal, Protocol

from torch import Tensor, nn

from paribus.parts.batch import Stream, TokenLayout
from paribus.parts.shape import Shape
from paribus.slots.component import Component, Cost, Load, Traits
from paribus.slots.norm import Norms

AddPositions = Callable[[Tensor, Tensor], Tensor]


class Unembed(Protocol):
    """How a head scores rows against the vocabulary: an embedding's `unembed`, bound."""

    def __call__(self, h: Tensor, bias: Tensor | None = None) -> Tensor: ...


class EmbeddingTraits(Traits, total=False):
    """Traits of an embedding."""

    any_width: bool  # projects to the width of each stack, so that the widths of stacks may differ
    unembeds: bool  # scores hidden states against the vocabulary; default: True
    modality: Literal["text", "images"]  # documents that it reads; default: text
    teacher: dict[str, str]  # size of the teacher -> option that sets it, if it differs from the model's
    options_from_corpus: dict[
        str, str
    ]  # option -> `same` (equals the corpus' number of this name) or `least` (at least)


class Embedding(Component, nn.Module, ABC):
    """Makes rows of a stream, and scores rows against its vocabulary.

    All stacks of a topology share it. `place` is what the position adds, (B, T, E) and positions -> (B, T, E); the
    embedding says when (BERT: before its norm). Heads call `unembed`, never a weight, so that tying, factorising and
    scaling stay in one place. `width` is that of its own rows, E, which is the stream's unless it is factorised:
    positions are placed on such rows, and heads bring rows to it before they are scored.
    """

    injects: ClassVar[tuple[str, ...]] = ("shape", "norm")
    traits: ClassVar[EmbeddingTraits] = {}
    width: int | None = None  # None: the stream's
    values_per_example: int | None = (
        None  # how many values an example always has, however many rows it makes; None: one a row
    )

    def stack_part(self, shape: Shape, norm: Norms) -> nn.ModuleDict | None:
        """What a stack of this shape has of it for itself, if anything: BART's norms, ELECTRA's projections."""
        return None

    @abstractmethod
    def forward(
        self, stream: Stream, past: int, place: AddPositions, own: nn.ModuleDict | None
    ) -> tuple[Tensor, TokenLayout]:
        """(B, T) -> (B, T, D), and what each row is; `own` is what the stack has of it."""

    @abstractmethod
    def unembed(self, h: Tensor, bias: Tensor | None = None) -> Tensor:
        """(…, E) -> (…, V), with an objective's bias of the vocabulary, (V,), where it has one."""

    @abstractmethod
    def cost(self, load: Load) -> Cost:
        """Return the cost of embedding `load.queries` tokens and scoring `load.head_positions`; a look-up is free."""

    def stack_part_cost(self, shape: Shape, load: Load) -> Cost:
        """What the part that a stack of this shape has for itself does for `load.queries` rows."""
        return Cost()
