"""What stands at the path of a part: a stack of layers, or whatever else a topology makes its rows with.

A stack of layers, and what its layers share in one forward pass.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, cast, final

import torch
from torch import Tensor, nn

from paribus.parts.attend import Attend
from paribus.parts.attention_plan import AttentionPlanner
from paribus.parts.attention_weights import require_attention_weights
from paribus.parts.batch import TokenLayout
from paribus.parts.context import Capture, Context, Kernel, Memory, State, States
from paribus.parts.layer import Layer
from paribus.parts.shape import Shape

if TYPE_CHECKING:
    from paribus.parts.context import States
    from paribus.slots.component import Load
    from paribus.slots.norm import Norm
    from paribus.slots.position import Position


class ComponentCost(NamedTuple):
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
    def input_shape(self) -> Shape:
        """The shape that the embedding makes rows for: its own, unless rows come in that are not as wide."""
        return self.shape

    @abstractmethod
    def start(self, batch: int, length: int) -> States:
        """Empty decoding state for `length` rows."""

    @abstractmethod
    def kernels(self, device: str = "cpu", rows: int = 0) -> tuple[str, ...]:
        """The kernels that its attentions will run on, for a summary."""

    @abstractmethod
    def costs(self, trains: Load, decodes: Load | None) -> Iterator[ComponentCost]:
        """What it comes to, kind by kind: operations for `trains`, state for `decodes`, if it is stepped."""


class LastLayerInput(NamedTuple):
    """What the last layer read of a whole sequence, for rows that ask the same of it later."""

    x: Tensor  # (B, S, D)
    layout: TokenLayout
    carry: dict[str, Tensor]
    cross_carry: dict[str, Tensor]


class Output(NamedTuple):
    """What a stack gives: rows, what they are, and what was asked for besides."""

    hidden: Tensor  # (B, T, D)
    layout: TokenLayout
    auxiliary: Tensor | None = None
    captured: tuple[dict[str, Tensor], ...] = ()  # of each layer, what a `Capture` says; `cross`: weights of a memory
    extra: Tensor | None = None  # what a memory made of it hands on
    last_layer_input: LastLayerInput | None = None  # where it is asked for


@final
class Stack(Stage):
    """Layers in order, the positions that they share, and a final norm where the placement asks for one."""

    def __init__(
        self,
        shape: Shape,
        layers: Sequence[Layer],
        positions: Sequence[Position],
        wiring: Sequence[tuple[Position, Position | None]],
        final: Norm | None,
        kernels: Sequence[Kernel],
        embedding: nn.ModuleDict | None = None,
    ) -> None:
        """`wiring` says which position each layer's attention reads, and which its cross-attention: one of `positions`,
        one of its layer's, or another stack's. `embedding` is what the stack has of that for itself."""
        super().__init__()
        self.shape = shape
        self.layers = nn.ModuleList(layers)
        self.position = nn.ModuleList(positions)
        self.embedding = embedding
        if final is not None:
            self.norm = final
        self.normed = final is not None
        read = {id(own): own for own, _ in wiring if own.traits["owner"] == "stack"}
        held = [id(position) for position in positions]
        self._placed = tuple(index for index, position in enumerate(held) if position in read)
        self._lent = tuple(position for key, position in read.items() if key not in held)  # no child
        self.planner = AttentionPlanner(kernels, shape.heads)
        for layer, (own, cross) in zip(layers, wiring, strict=True):
            self.planner.bind(layer.attention, own, layer.position, cross=False)
            if cross is not None:
                assert layer.cross is not None
                self.planner.bind(layer.cross, cross, layer.cross_position, cross=True)

    def add_positions(self, x: Tensor, positions: Tensor) -> Tensor:
        """What the positions of its own rows add to them before the first layer; a cross-attention's add nothing."""
        for index in self._placed:
            position = cast("Position", self.position[index])
            x = position.embed(x, positions)
        for position in self._lent:
            x = position.embed(x, positions)
        return x

    def forward(
        self,
        x: Tensor,
        rows: TokenLayout,
        memory: Memory | None = None,
        states: States | None = None,
        capture: Capture | bool = False,
        keys: TokenLayout | None = None,
    ) -> Output:
        """(B, T, D) -> (B, T, D). Where `keys` are given, the leading rows are these, and the others only ask: they see
        the leading ones, and no row sees them ("XLNet", Yang et al. 2019). `capture`: True is that of weights."""
        wanted = capture.resolve(len(self.layers)) if isinstance(capture, Capture) else Capture(weights=capture)
        past = states.past if states is not None else 0
        assert keys is None or states is None, "rows that only ask do so of whole sequences"
        if keys is None:
            keys = rows if states is None else states.extend(rows)
        assert states is None or not wanted.last_layer_input, "what is read is not all there where layers keep state"
        if wanted.weights:
            layers = cast("list[Layer]", list(self.layers))
            require_attention_weights(
                [each for layer in layers for each in (layer.attention, layer.cross) if each is not None]
            )
        plans = self.planner.plans(x, rows, keys, past, memory, wanted.weights)
        auxiliary: Tensor | None = None
        captured: list[dict[str, Tensor]] = []
        carry: dict[str, Tensor] = {}
        cross_carry: dict[str, Tensor] = {}
        read = x
        for index, layer in enumerate(self.layers):
            state = states.layers[index] if states is not None else {}
            kept: dict[str, Tensor] = {}
            captured.append(kept)
            if index == 0 and 0 in wanted.hidden:
                kept["input"] = x  # layer 0, so to speak
            shows, heads = kept if wanted.weights else None, kept if index + 1 in wanted.heads else None
            ctx = Context(plans, rows, keys, None, state.get("attention"), past, carry, shows, heads)
            cross = None
            if memory is not None:
                shown: dict[str, Tensor] | None = {} if wanted.weights else None
                cross = Context(plans, rows, memory.layout, memory.hidden, state.get("cross"), past, cross_carry, shown)
            read = x
            x, extra = layer(x, ctx, cross)
            if cross is not None and cross.captured:
                kept["cross"] = cross.captured["weights"]
            if index + 1 in wanted.hidden:
                kept["hidden"] = x
            if extra is not None:
                auxiliary = extra if auxiliary is None else auxiliary + extra
        if states is not None:
            states.past = past + rows.positions.shape[-1]
        again = LastLayerInput(read, keys, carry, cross_carry) if wanted.last_layer_input else None
        found = tuple(captured) if wanted.weights or wanted.heads or wanted.hidden else ()
        return Output(self.norm(x) if self.normed else x, rows, auxiliary, found, last_layer_input=again)

    def rerun_last_layer(
        self, read: LastLayerInput, asking: Tensor, at: Tensor, times: int, memory: Memory | None = None
    ) -> Tensor:
        """(B, N, D), (B, N) -> (B, N, D): rows that stand where those of `at` do, put through the last layer.

        They see what it read, however often they go through it, and then meet the final norm, if there is one.
        """
        keys = read.layout
        length = keys.positions.shape[-1]
        content, rows = read.x[:, :length], keys.append_copies(at)
        plans = self.planner.plans(content, rows, keys, 0, memory, capture=False)
        ctx = Context(plans, rows, keys, carry=read.carry)
        cross = None
        if memory is not None:
            cross = Context(plans, rows, memory.layout, memory.hidden, carry=read.cross_carry)
        for _ in range(times):
            x, _ = self.layers[-1](torch.cat([content, asking], dim=1), ctx, cross)
            asking = x[:, length:]
        return self.norm(asking) if self.normed else asking

    def kernels(self, device: str = "cpu", rows: int = 0, among: Sequence[Kernel] = ()) -> tuple[str, ...]:
        """The kernel that each layer's attention will run on, for a summary; one that asks for none is its own.

        It is one of the stack's own, or that would be chosen `among` others.
        """
        names = self.planner.kernels(device, rows, among)
        layers = cast("list[Layer]", list(self.layers))
        attends = [next((m for m in layer.attention.modules() if isinstance(m, Attend)), None) for layer in layers]
        return tuple("its own" if attend is None else names[attend.plan] for attend in attends)

    def start(self, batch: int, length: int) -> States:
        """Empty decoding state for `length` rows."""
        like = next(self.parameters(), torch.empty(0))
        layers: list[dict[str, State]] = []
        for layer in cast("list[Layer]", list(self.layers)):
            state = {"attention": layer.attention.start(batch, length, like)}
            if layer.crosses:
                state["cross"] = {}
            layers.append(state)
        return States(layers, capacity=length)

    def costs(self, trains: Load, decodes: Load | None) -> Iterator[ComponentCost]:
        """Its components slot by slot; then positions; then what is left, which are norms."""
        layers = cast("list[Layer]", list(self.layers))
        for name in self.shape.sublayers:
            components: list[Any] = [getattr(layer, name) for layer in layers]
            flops = sum(component.cost(trains).flops for component in components)
            state = sum(component.cost(decodes).state for component in components) if decodes is not None else 0
            yield ComponentCost(name, tuple(components), flops, state)
        held = [self.position, *(part for layer in layers for part in (layer.position, layer.cross_position))]
        yield ComponentCost(
            "position", tuple(part for part in held if part is not None), sum(self._read(layers, trains))
        )
        yield ComponentCost("norms", (self,))

    def last_layer_flops(self, load: Load) -> int:
        """The operations of the last layer alone, for rows that go through it once more."""
        layer = cast("Layer", self.layers[-1])
        components: list[Any] = [getattr(layer, name) for name in self.shape.sublayers]
        flops: int = sum(component.cost(load).flops for component in components)
        return flops + sum(self._read([layer], load))

    def _read(self, layers: Sequence[Layer], load: Load) -> Iterator[int]:
        """The operations of each position that an attention reads: once for each layer, or for all of one plan."""
        across = load._replace(keys=load.memory)
        planned: set[int] = set()
        for layer in layers:
            for attention, rows in ((layer.attention, load), (layer.cross, across)):
                for module in attention.modules() if attention is not None else ():
                    if isinstance(module, Attend) and module.plan not in planned:
                        if module.position.traits["bias"] == "positions":
                            planned.add(module.plan)
                        yield module.position.cost(rows).flops
