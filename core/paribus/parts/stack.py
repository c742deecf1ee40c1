"""A stack of layers, and what its layers share in one forward pass."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, cast, final

import torch
from torch import Tensor, nn

from paribus.parts.attend import Attend
from paribus.parts.context import Capture, Context, Demand, Kernel, Memory, Plan, State
from paribus.parts.layer import Layer
from paribus.parts.rows import Rows
from paribus.parts.shape import Shape
from paribus.parts.sight import ordered
from paribus.parts.stage import Share, Stage
from paribus.parts.weights import can_show

if TYPE_CHECKING:
    from paribus.slots.component import Load
    from paribus.slots.norm import Norm
    from paribus.slots.position import Position


class Read(NamedTuple):
    """What the last layer read of a whole sequence, for rows that ask the same of it later."""

    x: Tensor  # (B, S, D)
    rows: Rows
    carry: dict[str, Tensor]
    cross_carry: dict[str, Tensor]


class Output(NamedTuple):
    """What a stack gives: rows, what they are, and what was asked for besides."""

    hidden: Tensor  # (B, T, D)
    rows: Rows
    auxiliary: Tensor | None = None
    captured: tuple[dict[str, Tensor], ...] = ()  # of each layer, what a `Capture` says; `cross`: weights of a memory
    handed: Tensor | None = None  # what a memory made of it hands on
    read: Read | None = None  # where it is asked for


@dataclass
class States:
    """What a stack remembers between decoding steps: what its keys are, and each sublayer's own state."""

    layers: list[dict[str, State]]
    past: int = 0
    rows: Rows | None = None
    memory: Memory | None = None
    room: int | None = None  # for how many rows there is room; None: nobody said

    def extend(self, fresh: Rows) -> Rows:
        """All rows so far, after `fresh` ones came in."""
        if self.room is not None and self.past + fresh.positions.shape[-1] > self.room:
            came = f"{self.past} came already, and now {fresh.positions.shape[-1]} more"
            raise ValueError(f"these states have room for {self.room} rows: {came}; start(batch, length) says how many")
        if self.rows is None:
            self.rows = fresh
        else:
            sides = self.rows._replace(counted=None), fresh._replace(counted=None)  # of no use to rows against a cache
            self.rows = Rows(*(_joined(old, new) for old, new in zip(*sides, strict=True)))  # type: ignore[arg-type]  # a NamedTuple loses which field may be None
        return self.rows

    def take(self, index: Tensor) -> None:
        """Goes on with the sequences (B',) of those that there are, each as often as it comes, in this order."""
        for layer in self.layers:
            for state in layer.values():
                state.update({name: tensor.index_select(0, index) for name, tensor in state.items()})
        self.rows = None if self.rows is None else _taken(self.rows, index)
        if self.memory is not None:
            handed = None if self.memory.handed is None else self.memory.handed.index_select(0, index)
            hidden = self.memory.hidden.index_select(0, index)
            self.memory = Memory(hidden, _taken(self.memory.rows, index), handed)

    @property
    def bytes(self) -> int:
        """What its layers keep, and the memory that they read."""
        held = [tensor for layer in self.layers for state in layer.values() for tensor in state.values()]
        if self.memory is not None:
            held += [tensor for tensor in (self.memory.hidden, self.memory.handed) if tensor is not None]
        return sum(tensor.numel() * tensor.element_size() for tensor in held)


@dataclass
class _Planned:
    """What one plan is made from: the first attention with this sight and this position."""

    attend: Attend
    position: Position
    cross: bool
    key: tuple[object, ...]
    demand: Demand  # what is known of it before any row is


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
        self._kernels = tuple(kernels)
        self._planned: list[_Planned] = []
        for layer, (own, cross) in zip(layers, wiring, strict=True):
            self._bind(layer.attention, own, layer.position, cross=False)
            if cross is not None:
                assert layer.cross is not None
                self._bind(layer.cross, cross, layer.cross_position, cross=True)

    def _bind(self, attention: nn.Module, position: Position, part: nn.Module | None, *, cross: bool) -> None:
        own = None if part is position else part  # a position that is the layer's needs no part there
        for attend in (module for module in attention.modules() if isinstance(module, Attend)):
            key = (id(position), cross, *attend.asks)
            known = [planned.key for planned in self._planned]
            if key not in known:
                self._planned.append(_Planned(attend, position, cross, key, demanded(attend, position, cross)))
            attend.bind(position, known.index(key) if key in known else len(known), own)

    def place(self, x: Tensor, positions: Tensor) -> Tensor:
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
        rows: Rows,
        memory: Memory | None = None,
        states: States | None = None,
        capture: Capture | bool = False,
        keys: Rows | None = None,
    ) -> Output:
        """(B, T, D) -> (B, T, D). Where `keys` are given, the leading rows are these, and the others only ask: they see
        the leading ones, and no row sees them ("XLNet", Yang et al. 2019). `capture`: True is that of weights."""
        wanted = capture.of(len(self.layers)) if isinstance(capture, Capture) else Capture(weights=capture)
        past = states.past if states is not None else 0
        assert keys is None or states is None, "rows that only ask do so of whole sequences"
        if keys is None:
            keys = rows if states is None else states.extend(rows)
        assert states is None or not wanted.read, "what is read is not all there where layers keep state"
        if wanted.weights:
            layers = cast("list[Layer]", list(self.layers))
            can_show([each for layer in layers for each in (layer.attention, layer.cross) if each is not None])
        plans = self.plans(x, rows, keys, past, memory, wanted.weights)
        auxiliary: Tensor | None = None
        captured: list[dict[str, Tensor]] = []
        carry: dict[str, Tensor] = {}
        cross_carry: dict[str, Tensor] = {}
        read = x
        for index, layer in enumerate(self.layers):
            state = states.layers[index] if states is not None else {}
            kept: dict[str, Tensor] = {}
            captured.append(kept)
            if index == 0 and 0 in wanted.rows:
                kept["entering"] = x  # layer 0, so to speak
            shows, heads = kept if wanted.weights else None, kept if index + 1 in wanted.heads else None
            ctx = Context(plans, rows, keys, None, state.get("attention"), past, carry, shows, heads)
            cross = None
            if memory is not None:
                shown: dict[str, Tensor] | None = {} if wanted.weights else None
                cross = Context(plans, rows, memory.rows, memory.hidden, state.get("cross"), past, cross_carry, shown)
            read = x
            x, extra = layer(x, ctx, cross)
            if cross is not None and cross.capture:
                kept["cross"] = cross.capture["weights"]
            if index + 1 in wanted.rows:
                kept["rows"] = x
            if extra is not None:
                auxiliary = extra if auxiliary is None else auxiliary + extra
        if states is not None:
            states.past = past + rows.positions.shape[-1]
        again = Read(read, keys, carry, cross_carry) if wanted.read else None
        found = tuple(captured) if wanted.weights or wanted.heads or wanted.rows else ()
        return Output(self.norm(x) if self.normed else x, rows, auxiliary, found, read=again)

    def again(self, read: Read, asking: Tensor, at: Tensor, times: int, memory: Memory | None = None) -> Tensor:
        """(B, N, D), (B, N) -> (B, N, D): rows that stand where those of `at` do, put through the last layer.

        They see what it read, however often they go through it, and then meet the final norm, if there is one.
        """
        keys = read.rows
        length = keys.positions.shape[-1]
        content, rows = read.x[:, :length], keys.again(at)
        plans = self.plans(content, rows, keys, 0, memory, capture=False)
        ctx = Context(plans, rows, keys, carry=read.carry)
        cross = None
        if memory is not None:
            cross = Context(plans, rows, memory.rows, memory.hidden, carry=read.cross_carry)
        for _ in range(times):
            x, _ = self.layers[-1](torch.cat([content, asking], dim=1), ctx, cross)
            asking = x[:, length:]
        return self.norm(asking) if self.normed else asking

    def plans(
        self, x: Tensor, rows: Rows, keys: Rows, past: int, memory: Memory | None, capture: bool
    ) -> tuple[Plan, ...]:
        """What layers share, made once: visibility, rotation tables, biases of positions, the choice of kernel."""
        made: list[Plan] = []
        for planned in self._planned:
            seen = memory.rows if planned.cross and memory is not None else keys
            made.append(self._plan(planned, x, rows, seen, past, capture))
        return tuple(made)

    def _plan(self, planned: _Planned, x: Tensor, rows: Rows, seen: Rows, past: int, capture: bool) -> Plan:
        attend, position, sight = planned.attend, planned.position, planned.demand.sight
        behind = not planned.cross and seen.positions.shape[-1] < rows.positions.shape[-1]
        if rows.order is not None and not planned.cross:
            sight = sight._replace(causal=True)  # who says an order means it
        assert not behind or rows.order is not None or not sight.causal, "only an order says what came before them"
        demand = planned.demand._replace(
            sight=sight,
            weights=capture,
            ordered=rows.order is not None or behind,  # the index of rows behind the keys says nothing of them
            by_row=rows.documents is None or rows.counted is not None,
            aligned=past == 0 and not planned.cross and seen.positions.shape[-1] == rows.positions.shape[-1],
            hidden=seen.documents is not None,
            distances=planned.demand.distances and past == 0 and rows.counted is not None and seen.counted is not None,
            drops=attend.training and attend.dropout > 0,
            double=x.dtype == torch.float64,
            rows=rows.positions.shape[-1],
            device=x.device.type,
        )
        kernel = chosen(self._kernels, demand)
        q, q_tables = ordered(rows, past), position.tables(rows.positions, attend.rotary)
        k, k_tables = q, q_tables
        if seen is not rows:
            fresh = seen.positions if planned.cross else seen.positions[:, past:]
            k, k_tables = ordered(seen), position.tables(fresh, attend.rotary)
        plan = Plan(kernel, demand, attend.scale, attend.soft_cap, q, k, q_tables, k_tables, None)
        bias = position.bias if demand.bias == "positions" else None
        return plan._replace(prepared=kernel.prepare(plan, bias, self.shape.heads, x))

    def kernels(self, device: str = "cpu", rows: int = 0) -> tuple[str, ...]:
        """The kernel that each layer's attention will run on, for a summary; one that asks for none is its own."""
        names = [
            chosen(self._kernels, planned.demand._replace(device=device, rows=rows)).name for planned in self._planned
        ]
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
        return States(layers, room=length)

    def costs(self, trains: Load, decodes: Load | None) -> Iterator[Share]:
        """Its components slot by slot; then positions; then what is left, which are norms."""
        layers = cast("list[Layer]", list(self.layers))
        for name in self.shape.sublayers:
            components: list[Any] = [getattr(layer, name) for layer in layers]
            flops = sum(component.cost(trains).flops for component in components)
            state = sum(component.cost(decodes).state for component in components) if decodes is not None else 0
            yield Share(name, tuple(components), flops, state)
        held = [self.position, *(part for layer in layers for part in (layer.position, layer.cross_position))]
        yield Share("position", tuple(part for part in held if part is not None), sum(self._read(layers, trains)))
        yield Share("norms", (self,))

    def last(self, load: Load) -> int:
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


def demanded(attend: Attend, position: Position, cross: bool) -> Demand:
    """What an attention and its position declare."""
    return Demand(
        attend.sight,
        bias=position.traits["bias"],
        distances=position.traits.get("distances", False),
        soft_cap=attend.soft_cap is not None,
        mixes=position.mixes(),
        sinks=attend.sinks is not None,
        scored=attend.scored,
        aligned=not cross,
    )


def chosen(kernels: Sequence[Kernel], demand: Demand) -> Kernel:
    """The first kernel, in order of speed, that serves the demand; the last one serves them all."""
    return next(kernel for kernel in kernels if kernel.serves(demand))


def _taken(rows: Rows, index: Tensor) -> Rows:
    """Of what is said of each sequence by itself, that of some."""
    return Rows(*(vector if vector is None or len(vector) == 1 else vector[index] for vector in rows))  # type: ignore[arg-type]  # a NamedTuple loses which field may be None


def _joined(old: Tensor | None, new: Tensor | None) -> Tensor | None:
    if old is None and new is None:
        return None
    assert old is not None, "rows that come later say no more than the first ones did"
    assert new is not None, "rows that come later say no less than the first ones did"
    batch = max(old.shape[0], new.shape[0])
    return torch.cat([old.expand(batch, -1), new.expand(batch, -1)], dim=1)
