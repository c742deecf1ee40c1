"""Layer, stack of layers, and `Stage`, the interface of anything at the path of a part."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple, Protocol, TypeAlias, cast, final

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from paribus.parts.attend import Attend, component_cost, require_attention_weights
from paribus.parts.attention_planner import AttentionPlanner
from paribus.parts.batch import TokenLayout
from paribus.parts.context import AttentionSublayer, Capture, Context, Kernel, Memory, PositionHooks, State, States
from paribus.parts.shape import Cost, Load, Shape

Streams: TypeAlias = tuple[Tensor, ...]
"""What a layer passes to the next one, as its placement defines it: one residual stream, (B, T, D), or several.

The last of them is the current one.
"""

CompiledCall: TypeAlias = Callable[
    ["Layer", Streams, Context, Context | None, Mapping[str, State]], tuple[Streams, Tensor | None]
]

NO_STATES: Final[Mapping[str, State]] = {}


class Wiring(Protocol):
    """Methods of a placement that layers and stacks call; the full contract is `Placement` in `paribus.slots`."""

    def begin(self, x: Tensor) -> Streams: ...
    def advance(self, streams: Streams, sublayers: Mapping[str, Callable[[Any], Tensor]], ctx: Context) -> Streams: ...
    def end(self, streams: Streams) -> Tensor: ...
    def empty_state(self, batch: int, like: Tensor) -> State: ...
    def cost(self, load: Load) -> Cost: ...
    def norm_cost(self, load: Load) -> Cost: ...


@final
class Layer(nn.Module):
    """Self-attention, cross-attention if there is a memory, and feed-forward, each followed by dropout.

    Without a placement, each sublayer reads the output of the one before, without norms and residual stream.
    """

    def __init__(
        self,
        *,
        attention: AttentionSublayer,
        feedforward: nn.Module | None,
        placement: nn.Module | None,
        dropout: float,
        cross: AttentionSublayer | None = None,
        position: nn.Module | None = None,
        cross_position: nn.Module | None = None,
    ) -> None:
        super().__init__()
        self.attention = attention
        self.cross = cross
        self.feedforward = feedforward
        self.placement = placement
        self.position = position  # position of this layer, or its part of the stack's position
        self.cross_position = cross_position
        self.dropout = dropout
        self.crosses = cross is not None
        self.feeds = feedforward is not None
        self.feeds_context = bool(getattr(feedforward, "mixes_tokens", False))
        self.compiled: CompiledCall | None = None  # compiled form of a call, for training
        self.recomputes = False  # activations are computed again in the backward pass, and not stored

    def run(
        self, streams: Streams, ctx: Context, cross: Context | None = None, states: Mapping[str, State] = NO_STATES
    ) -> tuple[Streams, Tensor | None]:
        """Return what a call returns; in training, by its compiled form and with recomputed activations if so set."""
        is_plain = not self.training or ctx.state is not None
        call = call_layer if is_plain or self.compiled is None else self.compiled
        if is_plain or not self.recomputes or not torch.is_grad_enabled():
            return call(self, streams, ctx, cross, states)
        output: tuple[Streams, Tensor | None] = checkpoint(call, self, streams, ctx, cross, states, use_reentrant=False)
        return output

    def begin(self, x: Tensor) -> Streams:
        """Return the streams that the layer reads if all layers before it return `x`: (B, T, D)."""
        return (x,) if self.placement is None else cast("Wiring", self.placement).begin(x)

    def end(self, streams: Streams) -> Tensor:
        """Return the hidden states of the streams that the layer returns: (B, T, D)."""
        return streams[-1] if self.placement is None else cast("Wiring", self.placement).end(streams)

    def forward(
        self, streams: Streams, ctx: Context, cross: Context | None = None, states: Mapping[str, State] = NO_STATES
    ) -> tuple[Streams, Tensor | None]:
        """Return the streams for the next layer, and the auxiliary loss of the feed-forward, if it has one.

        `states` has the decoding state of the placement and of the feed-forward, as `ctx` has that of the attention.
        """
        auxiliary: Tensor | None = None

        def attend(h: Tensor | tuple[Tensor, Tensor, Tensor]) -> Tensor:
            if isinstance(h, Tensor):
                return self._dropped(self.attention(h, ctx))
            q, k, v = h
            return self._dropped(self.attention(q, ctx._replace(key_input=k, value_input=v)))

        def attend_memory(h: Tensor) -> Tensor:
            assert self.cross is not None, "expected a cross-attention"
            assert cross is not None, "expected the context of the memory"
            return self._dropped(self.cross(h, cross))

        def feed_forward(h: Tensor) -> Tensor:
            nonlocal auxiliary
            assert self.feedforward is not None, "expected a feed-forward"
            context = (ctx._replace(state=states.get("feedforward")),) if self.feeds_context else ()
            y, auxiliary = self.feedforward(h, *context)
            return self._dropped(y)

        sublayers: dict[str, Callable[[Any], Tensor]] = {"attention": attend}
        if self.crosses:
            sublayers["cross"] = attend_memory
        if self.feeds:
            sublayers["feedforward"] = feed_forward
        if self.placement is not None:
            placed = ctx._replace(state=states.get("placement"))
            streams = cast("Wiring", self.placement).advance(streams, sublayers, placed)
            if not isinstance(streams, tuple):
                name, given = type(self.placement).__name__, type(streams).__name__
                raise TypeError(f"`advance` of {name} returned a {given}; expected a tuple of streams (B, T, …)")
            return streams, auxiliary
        (x,) = streams
        for sublayer in sublayers.values():
            x = sublayer(x)
        return (x,), auxiliary

    def _dropped(self, y: Tensor) -> Tensor:
        return functional.dropout(y, self.dropout) if self.dropout and self.training else y


def call_layer(
    layer: Layer, streams: Streams, ctx: Context, cross: Context | None, states: Mapping[str, State]
) -> tuple[Streams, Tensor | None]:
    output: tuple[Streams, Tensor | None] = layer(streams, ctx, cross, states)
    return output


class ComponentCost(NamedTuple):
    """Cost of a component of a part. Those of one name are a line of a summary."""

    name: str  # kind of component
    modules: tuple[nn.Module, ...]  # parameters counted here, unless counted before
    flops: int = 0  # floating-point operations
    state: int = 0  # elements of decoding state
    layer: int | None = None  # None: of several layers, or of none


class Stage(nn.Module, ABC):
    """Interface of a part: the engine summarizes, prices, initializes and steps it."""

    shape: Shape  # its width is the width of the output, for which heads are made
    embedding: nn.Module | None  # its own part of the embedding

    @property
    def input_shape(self) -> Shape:
        """Shape that the embedding makes hidden states for: `shape`, unless the input has another width."""
        return self.shape

    @abstractmethod
    def start(self, batch: int, length: int) -> States:
        """Return an empty decoding state for `length` positions."""

    @abstractmethod
    def kernels(self, device: str = "cpu", queries: int = 0) -> tuple[str, ...]:
        """Return the kernels that its attentions run on, for a summary."""

    @abstractmethod
    def costs(self, trains: Load, decodes: Load | None) -> Iterator[ComponentCost]:
        """Return the costs by kind of component: operations for `trains`, decoding state for `decodes`, if it is
        stepped.
        """


class LastLayerInput(NamedTuple):
    """Input of the last layer for a whole sequence, for further passes through it."""

    x: Tensor  # (B, S, D)
    streams: Streams  # what the layer reads: `x`, or the streams of the placement
    ctx: Context  # of its attention
    cross: Context | None  # of its cross-attention

    @property
    def layout(self) -> TokenLayout:
        """Layout of the tokens."""
        return self.ctx.key_layout


class Output(NamedTuple):
    """Output of a stack: hidden states, their layout, and what else was requested."""

    hidden: Tensor  # (B, T, D)
    layout: TokenLayout  # layout of the tokens
    auxiliary: Tensor | None = None  # scalar that is added to the loss, if a feed-forward has one
    captured: tuple[
        dict[str, Tensor], ...
    ] = ()  # values of each layer that a `Capture` requests; `cross`: weights over a memory
    extra: Tensor | None = None  # `extra` of a memory made of this output
    last_layer_input: LastLayerInput | None = None  # if requested


@final
class Stack(Stage):
    """Layers in order, the positions that they share, and a final norm if the placement has one."""

    def __init__(
        self,
        shape: Shape,
        layers: Sequence[Layer],
        positions: Sequence[nn.Module],
        wiring: Sequence[tuple[PositionHooks, PositionHooks | None]],
        final: nn.Module | None,
        kernels: Sequence[Kernel],
        embedding: nn.ModuleDict | None = None,
        *,
        keeps_inputs: bool = False,
        loop_starts: tuple[int, ...] = (),
    ) -> None:
        """Build a stack.

        `wiring` gives the position that each layer's attention reads, and its cross-attention: one of `positions`, one
        of the layer, or one of another stack. `embedding` is the stack's own part of the embedding. With
        `keeps_inputs`, the `extra` of an output is the input of the first layer, for another stack that needs it.
        Before each layer of `loop_starts`, a learned vector is added.
        """
        super().__init__()
        self.shape = shape
        self.layers = nn.ModuleList(layers)
        self.position = nn.ModuleList(positions)
        self.embedding = embedding
        if final is not None:
            self.norm = final
        self.normed = final is not None
        self.keeps_inputs = keeps_inputs
        self.loop_embedding = nn.Embedding(len(loop_starts), shape.width) if loop_starts else None
        self._loop_starts = loop_starts
        attentions = [attention for layer in layers for attention in (layer.attention, layer.cross)]
        self._reads_inputs = any(
            "inputs" in attention.traits.get("needs", []) for attention in attentions if attention is not None
        )
        stack_positions = {
            id(attention_position): attention_position
            for attention_position, _ in wiring
            if attention_position.traits["owner"] == "stack"
        }
        own_ids = [id(position) for position in positions]
        self._placed = tuple(index for index, position in enumerate(own_ids) if position in stack_positions)
        self._lent = tuple(position for key, position in stack_positions.items() if key not in own_ids)  # no child
        self.planner = AttentionPlanner(kernels, shape.heads)
        for layer, (attention_position, cross) in zip(layers, wiring, strict=True):
            self.planner.bind(layer.attention, attention_position, layer.position, cross=False)
            if cross is not None:
                assert layer.cross is not None
                self.planner.bind(layer.cross, cross, layer.cross_position, cross=True)

    def add_positions(self, x: Tensor, positions: Tensor) -> Tensor:
        """Return embeddings with the positions of self-attention added; those of cross-attention add nothing."""
        for index in self._placed:
            position = cast("PositionHooks", self.position[index])
            x = position.embed(x, positions)
        for position in self._lent:
            x = position.embed(x, positions)
        return x

    def forward(
        self,
        x: Tensor,
        layout: TokenLayout,
        memory: Memory | None = None,
        states: States | None = None,
        capture: Capture | bool = False,
        keys: TokenLayout | None = None,
        tokens: Tensor | None = None,
    ) -> Output:
        """Return the output of the layers: (B, T, D) -> (B, T, D).

        With `keys`, the first tokens have this layout and the others are extra queries: they see the keys, and no token
        sees them ("XLNet", Yang et al. 2019). `capture`: True captures the attention weights. `tokens`: ids, (B, T).
        """
        request = capture.resolve(len(self.layers)) if isinstance(capture, Capture) else Capture(weights=capture)
        past = states.past if states is not None else 0
        assert keys is None or states is None, "extra queries need whole sequences"
        if keys is None:
            keys = layout if states is None else states.extend(layout)
        assert states is None or not request.last_layer_input, (
            "the input of the last layer is incomplete with a decoding state"
        )
        layers = cast("list[Layer]", list(self.layers))
        if request.weights:
            require_attention_weights(
                [attention for layer in layers for attention in (layer.attention, layer.cross) if attention is not None]
            )
        plans = self.planner.plans(x, layout, keys, past, memory, request.weights)
        auxiliary: Tensor | None = None
        captured: list[dict[str, Tensor]] = []
        inputs = x if self._reads_inputs else None
        self_context = Context(plans, layout, keys, past=past, carry={}, inputs=inputs, tokens=tokens)
        cross_context = None
        if memory is not None:
            extra_inputs = memory.extra if self._reads_inputs else None
            cross_context = Context(
                plans, layout, memory.layout, memory.hidden, None, past, {}, inputs=inputs, memory_inputs=extra_inputs
            )
        streams = layer_streams = layers[0].begin(x)
        for index, layer in enumerate(layers):
            state = states.layers[index] if states is not None else {}
            layer_capture: dict[str, Tensor] = {}
            captured.append(layer_capture)
            if index == 0 and 0 in request.hidden:
                layer_capture["input"] = x  # layer 0
            ctx = self_context._replace(
                state=state.get("attention"),
                captured=layer_capture if request.weights else None,
                captured_heads=layer_capture if index + 1 in request.heads else None,
            )
            cross = cross_context
            if cross_context is not None:
                cross = cross_context._replace(state=state.get("cross"), captured={} if request.weights else None)
            if index in self._loop_starts:
                assert self.loop_embedding is not None
                streams = (*streams[:-1], streams[-1] + self.loop_embedding.weight[self._loop_starts.index(index)])
            layer_streams = streams
            streams, extra = layer.run(streams, ctx, cross, state)
            if cross is not None and cross.captured:
                layer_capture["cross"] = cross.captured["weights"]
            if index + 1 in request.hidden:
                layer_capture["hidden"] = layer.end(streams)
            if extra is not None:
                auxiliary = extra if auxiliary is None else auxiliary + extra
        if states is not None:
            states.past = past + layout.positions.shape[-1]
        last_input = None
        if request.last_layer_input:
            hidden = layers[-2].end(layer_streams) if len(layers) > 1 else x
            last_input = LastLayerInput(hidden, layer_streams, self_context, cross_context)
        captures = tuple(captured) if request.weights or request.heads or request.hidden else ()
        kept = x if self.keeps_inputs else None
        hidden = layers[-1].end(streams)
        return Output(self.norm(hidden) if self.normed else hidden, layout, auxiliary, captures, kept, last_input)

    def rerun_last_layer(
        self, read: LastLayerInput, queries: Tensor, index: Tensor, times: int, memory: Memory | None = None
    ) -> Tensor:
        """Return queries at the positions `index` after `times` passes through the last layer.

        Shapes: (B, N, D), (B, N) -> (B, N, D).

        Each pass attends to the input of the last layer; the final norm follows, if there is one.
        """
        keys = read.layout
        length = keys.positions.shape[-1]
        content, layout = read.x[:, :length], keys.append_copies(index)
        plans = self.planner.plans(content, layout, keys, 0, memory, capture=False)
        ctx = read.ctx._replace(plans=plans, layout=layout)
        cross = None if read.cross is None else read.cross._replace(plans=plans, layout=layout)
        layer = cast("Layer", self.layers[-1])
        for _ in range(times):
            pairs = zip(read.streams, layer.begin(queries), strict=True)
            streams = tuple(torch.cat([known[:, :length], asked], dim=1) for known, asked in pairs)
            queries = layer.end(layer.run(streams, ctx, cross)[0])[:, length:]
        return self.norm(queries) if self.normed else queries

    def kernels(self, device: str = "cpu", queries: int = 0, among: Sequence[Kernel] = ()) -> tuple[str, ...]:
        """Return the kernel that each layer's attention runs on, for a summary: its own, or chosen `among` others."""
        names = self.planner.kernels(device, queries, among)
        layers = cast("list[Layer]", list(self.layers))
        attends = [next((m for m in layer.attention.modules() if isinstance(m, Attend)), None) for layer in layers]
        return tuple("its own" if attend is None else names[attend.plan] for attend in attends)

    def start(self, batch: int, length: int) -> States:
        """Return an empty decoding state for `length` positions."""
        like = next(self.parameters(), torch.empty(0))
        layers: list[dict[str, State]] = []
        for layer in cast("list[Layer]", list(self.layers)):
            state = {"attention": layer.attention.start(batch, length, like)}
            for module in layer.attention.modules():
                if isinstance(module, Attend):
                    state["attention"].update(module.start(batch, length, like))
            if layer.crosses:
                state["cross"] = {}
            placed = {} if layer.placement is None else cast("Wiring", layer.placement).empty_state(batch, like)
            fed = {} if layer.feedforward is None else cast("Any", layer.feedforward).start(batch, like)
            state.update({name: empty for name, empty in (("placement", placed), ("feedforward", fed)) if empty})
            layers.append(state)
        return States(layers, capacity=length)

    def costs(self, trains: Load, decodes: Load | None) -> Iterator[ComponentCost]:
        """Return the costs slot by slot, then of positions, then of the rest, which are norms."""
        layers = cast("list[Layer]", list(self.layers))
        for name in self.shape.sublayers:
            for index, layer in enumerate(layers):
                component: Any = getattr(layer, name)
                state = component_cost(component, decodes).state if decodes is not None else 0
                yield ComponentCost(name, (component,), component_cost(component, trains).flops, state, index)
        positions = [self.position, *(part for layer in layers for part in (layer.position, layer.cross_position))]
        yield ComponentCost(
            "position", tuple(part for part in positions if part is not None), sum(self._position_flops(layers, trains))
        )
        final_norm: Any = self.norm if self.normed else None
        norms = 0 if final_norm is None else final_norm.cost(trains).flops
        for index, layer in enumerate(layers):
            if layer.placement is None:
                continue
            wiring = cast("Wiring", layer.placement)
            norms += wiring.norm_cost(trains).flops
            flops, state = wiring.cost(trains).flops, 0 if decodes is None else wiring.cost(decodes).state
            if flops or state:
                yield ComponentCost("placement", (layer.placement,), flops, state, index)
        yield ComponentCost("norms", (self,), norms)

    def last_layer_flops(self, load: Load) -> int:
        """Return the operations of the last layer alone, for a further pass through it."""
        layer = cast("Layer", self.layers[-1])
        components: list[Any] = [getattr(layer, name) for name in self.shape.sublayers]
        components += [layer.placement] if layer.placement is not None else []
        flops: int = sum(component_cost(component, load).flops for component in components)
        return flops + sum(self._position_flops([layer], load))

    def _position_flops(self, layers: Sequence[Layer], load: Load) -> Iterator[int]:
        """Return the operations of each position that an attention reads, once per layer, or once per plan if they
        share it.
        """
        memory_load = load._replace(keys=load.memory)
        counted_plans: set[int] = set()
        for layer in layers:
            for attention, attention_load in ((layer.attention, load), (layer.cross, memory_load)):
                for module in attention.modules() if attention is not None else ():
                    if isinstance(module, Attend) and module.plan not in counted_plans:
                        if module.position.traits["bias"] == "positions" and module.forget is None:
                            counted_plans.add(module.plan)
                        yield module.position.cost(attention_load).flops
