"""Slot `topology`: the stacks of a model and the streams between them."""

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
    from paribus.parts.attention_planner import CrossAttention
    from paribus.slots.attention import Attention


class Part(NamedTuple):
    """One stack of a topology. The main stack has the path `body` in every topology, so that checkpoints fit after a
    swap.
    """

    name: str  # key under `parts:` of a spec
    path: str  # path of its tensors; "body" for the main stack
    causal: bool  # tokens see earlier ones only
    cross: str | None = None  # path of the part that it attends to
    recurrent: bool = False  # has no self-attention; reads a memory without value and output projections
    opposite: bool = False  # two causal stacks, which read in opposite directions


class Builder(Protocol):
    """Builder of the modules of a topology, as the spec configures them.

    A topology of stacks needs `embedding` and `stack` only; the other methods are for parts that are another `Stage`.
    """

    def embedding(self, *, width: int | None = None, scored: int | None = None) -> Embedding:
        """Return the embedding that the parts share, made by the first call.

        The first call may set its `width`, and the width of the hidden states that it has `scored`, if they differ from
        the width of the stream.
        """
        ...

    def stack(self, path: str, *, placed: str | None = None, causal: bool | None = None) -> Stack:
        """Return the stack at `path`.

        With `placed`, it shares the positions of the stack at that path, built before, if both have the same position
        in the spec. `causal` is that of the part unless it is given, for a part that is made of several stacks.
        """
        ...

    def separate_embedding(self) -> Embedding:
        """Return another embedding, for a part that does not share one; it scores nothing."""
        ...

    def shape_of(self, path: str) -> Shape:
        """Return the shape of a part that is not a stack."""
        ...

    def embedding_part(self, path: str) -> nn.ModuleDict | None:
        """Return the `stack_part` of the embedding for a part that is not a stack."""
        ...

    def cross_attention(self, path: str, memory_width: int) -> tuple[Attention, CrossAttention]:
        """Return the attention by which a recurrent part reads a memory, and the object that runs it."""
        ...


class TopologyTraits(Traits, total=False):
    """Traits of a topology."""

    provides: list[str]  # abilities that objectives may need: last-layer, second-stream, feedback, separate-directions
    needs: list[str]  # abilities of an objective without which it cannot be trained


class Topology(Component, nn.Module, ABC):
    """Topology: the stacks of a model. It has the attribute `embedding`, and a `Stage` at the path of each of `parts`.

    `reads` names the slots that it uses; a spec that sets another slot is rejected, since it would be ignored silently.
    """

    injects: ClassVar[tuple[str, ...]] = ("build",)
    traits: ClassVar[TopologyTraits] = {}
    parts: ClassVar[tuple[Part, ...]]  # its stacks
    reads: ClassVar[tuple[str, ...]] = (  # slots that it uses
        "embedding",
        "attention",
        "position",
        "norm",
        "placement",
        "feedforward",
    )
    embedding: Embedding  # embedding of the body, which scores tokens

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
        """Return the output of one part. `memory` is the output of the part that it attends to, if any."""

    def run_with_feedback(
        self, streams: Mapping[str, Stream], feed: StepInputFunction, memory: Memory | None
    ) -> Output:
        """Return the output of the body, where each position after the first may read the prediction of the one before.

        Called only for a topology with the trait `provides: feedback`, which computes positions one after the other.
        """
        raise NotImplementedError

    def start(self, batch: int, length: int) -> States:
        """Return an empty decoding state of the body."""
        return self.stage("body").start(batch, length)

    def stage(self, path: str) -> Stage:
        """Return the stage at the path of a part."""
        stage = self.get_submodule(path)
        assert isinstance(stage, Stage), f"expected a Stage at {path}"
        return stage


def memory_of(output: Output) -> Memory:
    """Return the output of a part as a memory for cross-attention."""
    return Memory(output.hidden, output.layout, output.extra)
