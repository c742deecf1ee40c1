"""What stands at the path of a part: a stack of layers, or whatever else a topology makes its rows with."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

from torch import nn

from paribus.parts.shape import Shape

if TYPE_CHECKING:
    from paribus.parts.states import States
    from paribus.slots.component import Load


class Share(NamedTuple):
    """One kind of what a part is made of, over all the places where it has that: a line of a summary."""

    name: str
    modules: tuple[nn.Module, ...]  # whose parameters are counted here, but for those that were counted before
    flops: int = 0
    state: int = 0


class Stage(nn.Module, ABC):
    """What the engine asks of a part, besides rows: it summarises, prices, initialises and steps any that answers."""

    shape: Shape  # its width is that of the rows which it gives, and heads are made for these
    embedding: nn.Module | None  # what it has of the embedding for itself

    @property
    def enters(self) -> Shape:
        """The shape that the embedding makes rows for: its own, unless rows come in that are not as wide."""
        return self.shape

    @abstractmethod
    def start(self, batch: int, length: int) -> States:
        """Empty decoding state for `length` rows."""

    @abstractmethod
    def kernels(self, device: str = "cpu", rows: int = 0) -> tuple[str, ...]:
        """The kernels that its attentions will run on, for a summary."""

    @abstractmethod
    def costs(self, trains: Load, decodes: Load | None) -> Iterator[Share]:
        """What it comes to, kind by kind: operations for `trains`, state for `decodes`, if it is stepped."""
