"""The slot `topology`: which stacks there are and how streams run through them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import ClassVar, NamedTuple, Protocol

from torch import nn

from paribus.parts.context import Memory
from paribus.parts.rows import Stream
from paribus.parts.stack import Output, Stack, States
from paribus.slots.component import Component
from paribus.slots.embedding import Embedding


class Part(NamedTuple):
    """One stack of a topology. The main one stands at `body` in every topology, so checkpoints survive a swap."""

    name: str  # what a spec calls it under `parts:`
    path: str  # where its tensors are: "body" for the main one
    causal: bool
    cross: str | None = None  # the path of the part that it attends to


class Builder(Protocol):
    """What a topology is given to build itself from: everything below it is decided by the spec."""

    def embedding(self) -> Embedding: ...

    def stack(self, path: str) -> Stack: ...


class Topology(Component, nn.Module, ABC):
    """Arranges stacks. It has `embedding` and one `Stack` for each of `parts`, at that part's path.

    `reads` names the slots that it uses; a spec that fills another is refused, since that would be ignored in silence.
    """

    injects: ClassVar[tuple[str, ...]] = ("build",)
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
        capture: bool = False,
    ) -> Output:
        """The output of one part. `memory` is that of the part it attends to, if it attends to one."""

    def start(self, batch: int, length: int) -> States:
        """Empty decoding state for the body."""
        body: Stack = self.get_submodule("body")  # type: ignore[assignment]  # `parts` says that it is a Stack
        return body.start(batch, length)


def memory_of(output: Output) -> Memory:
    return Memory(output.hidden, output.rows)
