"""Base class of all components, with their traits, costs and keyed draws."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, ClassVar, NamedTuple, Protocol, TypedDict

from paribus.parts.shape import Role

if TYPE_CHECKING:  # corpora and tokenizers need no torch
    from torch import Tensor


class Traits(TypedDict, total=False):
    """Traits of a component of any slot; each slot with traits of its own extends it.

    Traits state what a component needs, provides and cannot be combined with. Values are literals: the component index
    stores them as JSON, so that specs are checked without an import of torch.
    """

    compiles: bool  # runs under torch.compile


class Cost(NamedTuple):
    """Cost of a component for a load: floating-point operations, and elements of decoding state.

    A multiply-add counts as two operations. Norms, softmax and activations count as none, as in torch's own counter.
    """

    flops: int = 0
    state: int = 0

    def __add__(self, other: object) -> Cost:
        assert isinstance(other, Cost)
        return Cost(self.flops + other.flops, self.state + other.state)


class Load(NamedTuple):
    """Size of one sequence. A decoding step has `queries=1` and all the keys."""

    queries: int  # more than keys if there are extra queries
    keys: int
    memory: int = 0  # positions of the memory that cross-attention reads
    head_positions: int = 0  # positions that the head of an objective runs on


class KeyedDraws(Protocol):
    """Random draws for buffers that a component makes itself, keyed like the draws of parameters."""

    def __call__(self, name: str, shape: tuple[int, ...]) -> Tensor:
        """Return standard normal float32 draws, keyed by (seed, path of the component, name)."""
        ...


class Component:
    """Base class of everything that fills a slot.

    The keyword-only parameters of `__init__` are the options of the component: each has a type, and an annotation with
    a one-line description and its limits. Positional parameters are injected by the engine; `injects` of the slot names
    them, and a component cannot declare others.
    """

    injects: ClassVar[tuple[str, ...]] = ()
    traits: ClassVar[Traits] = {}
    roles: ClassVar[Mapping[str, Role]] = {}
    class_specific: ClassVar[bool] = (
        False  # whether its tensors mean nothing to another class, were they alike in all else
    )

    def prepare(self, keyed: KeyedDraws) -> None:
        """Make the buffers of the component. Called once, after all parameters are drawn."""
