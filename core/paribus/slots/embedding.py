"""Slot `embedding`: from tokens to hidden states, and from hidden states to scores over the vocabulary."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import ClassVar, Literal, Protocol

from torch import Tensor, nn

from paribus.parts.batch import Stream, TokenLayout
from paribus.parts.context import States
from paribus.parts.shape import Cost, Load, Shape
from paribus.slots.component import Component, Traits
from paribus.slots.norm import Norms

AddPositions = Callable[[Tensor, Tensor], Tensor]  # of embeddings and positions: (B, T, E), (B|1, T) -> (B, T, E)


class Unembed(Protocol):
    """Function that scores hidden states against the vocabulary: a bound `unembed` of the embedding."""

    def __call__(self, h: Tensor, bias: Tensor | None = None) -> Tensor:
        """Return the scores: (…, D) -> (…, V)."""
        ...


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
    """Embedding: turns a stream of tokens into hidden states, and scores hidden states against its vocabulary.

    All stacks of a topology share one embedding. `place` adds the position, (B, T, E) and positions -> (B, T, E); the
    embedding decides when it is called (BERT: before its norm). Heads call `unembed` and never read a weight, so tying,
    factorization and scaling stay in this class. `width` is E, the width of the embeddings: positions are added at this
    width, and heads project hidden states to it before they are scored.
    """

    injects: ClassVar[tuple[str, ...]] = ("shape", "norm")
    traits: ClassVar[EmbeddingTraits] = {}
    width: int | None = None  # None: the width of the stream
    reach: int = 0  # number of positions before a token whose tokens its vector depends on
    values_per_example: int | None = None  # fixed number of values of an example (pixels); None: one per position

    def stack_part(self, shape: Shape, norm: Norms) -> nn.ModuleDict | None:
        """Return the modules that one stack has for itself (BART's norms, ELECTRA's projections), or None."""
        return None

    @abstractmethod
    def forward(
        self, stream: Stream, past: int, place: AddPositions, part: nn.ModuleDict | None
    ) -> tuple[Tensor, TokenLayout]:
        """Return the hidden states, (B, T) -> (B, T, D), and the layout; `part` is the `stack_part` of the stack."""

    def embed_after(
        self, states: States, stream: Stream, place: AddPositions, part: nn.ModuleDict | None
    ) -> tuple[Tensor, TokenLayout]:
        """Return the hidden states and the layout of tokens that follow those of a decoding state."""
        whole = states.with_recent(stream, self.reach) if self.reach else stream
        recent = whole.tokens.shape[1] - stream.tokens.shape[1]
        x, layout = self(whole, states.past - recent, place, part)
        return (x[:, recent:], layout.span(recent, whole.tokens.shape[1])) if recent else (x, layout)

    @abstractmethod
    def unembed(self, h: Tensor, bias: Tensor | None = None) -> Tensor:
        """Return scores over the vocabulary, (…, E) -> (…, V), plus the objective's bias, (V,), if it has one."""

    @abstractmethod
    def cost(self, load: Load) -> Cost:
        """Return the cost of embedding `load.queries` tokens and scoring `load.head_positions`; a look-up is free."""

    def stack_part_cost(self, shape: Shape, load: Load) -> Cost:
        """Return the cost of `stack_part` for `load.queries` tokens."""
        return Cost()
