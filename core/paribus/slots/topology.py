"""The slot `topology`: which stacks there are and how streams run through them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import TYPE_CHECKING, ClassVar, NamedTuple, Protocol

from torch import nn

from paribus.parts.batch import StepInputFunction, Stream
from paribus.parts.context import Capture, Memory, States
from paribus.parts.shape import Shape
from paribus.parts.stack import Output, Stack, Stage
from paribus.slots.component import Component, Traits
from paribus.slots.embedding import Embedding

if TYPE_CHECKING:
    from paribus.parts.cross_attention import CrossAttention
    from paribus.slots.attention import Attention


class Part(NamedTuple):
    """One stack of a topology. The main one stands at `body` in every topology, so checkpoints survive a swap."""

    name: str  # what a spec calls it under `parts:`
    path: str  # where its tensors are: "body" for the main one
    causal: bool
    cross: str | None = None  # the path of the part that it attends to
    recurrent: bool = False  # no attention mixes its own rows; what it attends to, it reads as it stands


class Builder(Protocol):
    """What a topology is given to build itself from: everything below it is decided by the spec.

    One of stacks needs the first two. What else is here is for parts that are another kind of `Stage`.
    """

    def embedding(self, *, width: int | None = None, scored: int | None = None) -> Embedding:
        """The one that parts share, made when it is first asked for: then its rows may be told another `width` than the
        stream's, and so may the rows that it has `scored`."""
        ...

    def stack(self, path: str, *, placed: str | None = None) -> Stack:
        """The stack at `path`. What places rows in the stack at `placed`, if that is given and was built before, places
        them here as well, where it is said alike: so a table of positions is shared as that of tokens is."""
        ...

    def separate_embedding(self) -> Embedding:
        """Another embedding, for a part that does not share: nobody has rows scored by it."""
        ...

    def shape_of(self, path: str) -> Shape:
        """What a part that is no stack is built for."""
        ...

    def embedding_part(self, path: str) -> nn.ModuleDict | None:
        """What a part that is no stack has of the embedding for itself."""
        ...

    def cross_attention(self, path: str, memory_width: int) -> tuple[Attention, CrossAttention]:
        """The attention by which a recurrent part reads a memory, and what runs it."""
        ...


class TopologyTraits(Traits, total=False):
    """Traits of a topology."""

    provides: list[str]  # abilities that objectives may need: last-layer, second-stream, feedback
    needs: list[str]  # abilities of an objective without which it cannot be trained


class Topology(Component, nn.Module, ABC):
    """Arranges stacks. It has `embedding` and for each of `parts`, at its path, a `Stack` or another `Stage`.

    `reads` names the slots that it uses; a spec that fills another is refused, since that would be ignored in silence.
    """

    injects: ClassVar[tuple[str, ...]] = ("build",)
    traits: ClassVar[TopologyTraits] = {}
    parts: ClassVar[tuple[Part, ...]]
    reads: ClassVar[tuple[str, ...]] = (
        "embedding",
        "attention",
        "position",
        "norm",
        "placement",
        "feedforward",
    )
    embedding: Embedding

    @abstractmethod
    def run(
        self,
        streams: Mapping[str, Stream],
        part: str,
        *,
        memory: Memory | None = None,
        states: States | None = None,
        capture: Capture | bool = False,
    ) -> Output:
        """The output of one part. `memory` is that of the part it attends to, if it attends to one."""

    def run_with_feedback(
        self, streams: Mapping[str, Stream], feed: StepInputFunction, memory: Memory | None
    ) -> Output:
        """The output of the body where each row but the first may read what was made of the one before it.

        Asked of a topology that provides `feedback`, since its rows are made one after the other.
        """
        raise NotImplementedError

    def start(self, batch: int, length: int) -> States:
        """Empty decoding state for the body."""
        return self.stage("body").start(batch, length)

    def stage(self, path: str) -> Stage:
        """What stands at the path of a part."""
        found = self.get_submodule(path)
        assert isinstance(found, Stage), f"`parts` says that a part is at {path}"
        return found


def memory_of(output: Output) -> Memory:
    return Memory(output.hidden, output.layout, output.extra)
