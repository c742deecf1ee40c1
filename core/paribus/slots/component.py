"""What every component is, and what may be said about one without importing it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, ClassVar, NamedTuple, Protocol, TypedDict

from paribus.parts.shape import Role

if TYPE_CHECKING:  # corpora and tokenizers are components that need no torch
    from torch import Tensor


class Traits(TypedDict, total=False):
    """Traits of a component of any slot; each slot with traits of its own extends it.

    Traits state what a component needs, provides and cannot be combined with. Values are literals: the component index
    stores them as JSON, so that specs are checked without an import of torch.
    """

    compiles: bool  # runs under torch.compile


class Cost(NamedTuple):
    """What a component does for a load: floating-point operations, and elements of state kept for decoding.

    A multiply-add counts as two operations; norms, softmax and activations count as none, as in torch's own counter.
    """

    flops: int = 0
    state: int = 0

    def __add__(self, other: object) -> Cost:
        assert isinstance(other, Cost)
        return Cost(self.flops + other.flops, self.state + other.state)


class Load(NamedTuple):
    """One sequence's worth of work. A decoding step is `queries=1` against all the keys."""

    queries: int  # more than keys where rows are appended that only ask
    keys: int
    memory: int = 0  # rows of the memory that a cross-attention reads
    head_positions: int = 0  # rows that an objective's head runs on


class KeyedDraws(Protocol):
    """Draws for buffers that a component makes for itself, keyed like parameters."""

    def __call__(self, name: str, shape: tuple[int, ...]) -> Tensor:
        """Standard normal float32 draws, keyed by (seed, path of the component, name)."""
        ...


class Component:
    """Anything that fills a slot.

    The keyword-only parameters of `__init__` are its options: typed, with a one-line description and their limits in
    the annotation. What is positional is injected; each slot says what (`injects`). Nothing else may be declared.
    """

    injects: ClassVar[tuple[str, ...]] = ()
    traits: ClassVar[Traits] = {}
    roles: ClassVar[Mapping[str, Role]] = {}
    class_specific: ClassVar[bool] = (
        False  # whether its tensors mean nothing to another class, were they alike in all else
    )

    def prepare(self, keyed: KeyedDraws) -> None:
        """Makes buffers, once the parameters have been drawn; what can be derived in `forward` needs none."""
