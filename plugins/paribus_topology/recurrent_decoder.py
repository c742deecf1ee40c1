"""Layers of recurrent cells that write a target, and read a memory at every step."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Final, Literal, NamedTuple, cast, final

import torch
from torch import Tensor, nn
from torch.nn import functional

from paribus import (
    Attention,
    AttentionPlan,
    Capture,
    ComponentCost,
    CrossAttention,
    Load,
    Memory,
    Output,
    Shape,
    Stage,
    State,
    States,
    TokenLayout,
)
from paribus_topology.cells import CELLS, Cell, Hidden, Kind, Weights, weights_of
from paribus_topology.first_states import FirstStates
from paribus_topology.places import Places, filled, places
from paribus_topology.readout import Readout

Plans = tuple[AttentionPlan, ...]
PARTS: Final = ("h", "c")


class _Asked(NamedTuple):
    """What a step comes to."""

    state: Tensor  # (B, K) that asks the memory
    read: Tensor | None  # (B, M), where it did so in the step
    said: Tensor | None  # (B, R), where that goes into the next one


class Manner(NamedTuple):
    """How a decoder steps."""

    kind: Kind
    previous: bool  # the state before a row asks, and not the one behind it
    feeding: bool
    readout: Literal["maxout", "tanh"]
    back: bool  # the encoder came back to its first row


@dataclass
class _Pass:
    """One pass: what its steps share, and what goes from one to the next."""

    x: Tensor  # (B, T, E)
    rows: TokenLayout
    memory: Memory
    seen: Places | None
    weights: list[Weights]
    cross: State  # keys and values of the memory, made once
    capture: bool
    now: list[Hidden] = field(default_factory=list)  # of each layer, (1, B, K) each part
    fed: Tensor | None = None  # (B, R): what was said last, where that goes into the next step
    captured: list[Tensor] = field(default_factory=list)

    @property
    def top(self) -> Tensor:
        """(B, K)."""
        return self.now[-1][0][0]


@final
class RecurrentDecoder(Stage):
    """Steps through a target. The state before a row asks the memory, and what it reads goes into the step ("previous",
    Bahdanau et al. 2015); or the state behind it asks, and what is said of that goes into the next step ("current",
    Luong et al. 2015). Unless `feeding`, nothing does: all states are made first, and ask together.

    A state is held over padding, and each document begins where the encoder left its own. (B, T, E) -> (B, T, R).
    """

    def __init__(
        self,
        place: Shape,
        shape: Shape,
        embedding: nn.ModuleDict | None,
        cross: tuple[Attention, CrossAttention],
        manner: Manner,
        *,
        reads: int,
        memory_width: int,
    ) -> None:
        super().__init__()
        self.place, self.shape, self.reads = place, shape, reads
        self.embedding = embedding
        kind, previous, feeding, readout, back = manner
        self.previous, self.feeding = previous, feeding
        self.make, width = CELLS[kind], place.width
        fed = (memory_width if previous else shape.width) if feeding else 0
        self.layers = nn.ModuleList(
            Cell(kind, width if index else reads, width, fed=0 if index else fed) for index in range(place.layers)
        )
        self.first = FirstStates(place, parts=self.make.parts, back=back)
        self.cross, crossing = cross
        self._crossing = (crossing,)
        token = reads if previous else 0  # the state behind a row has read it
        self.readout = Readout(readout, shape.width, state=width, context=memory_width, token=token)

    @property
    def enters(self) -> Shape:
        return replace(self.place, width=self.reads)

    def forward(
        self,
        x: Tensor,
        rows: TokenLayout,
        memory: Memory,
        states: States | None = None,
        capture: Capture | bool = False,
    ) -> Output:
        """(B, T, E) -> (B, T, R)."""
        cells = cast("list[Cell]", list(self.layers))
        shows = capture.weights if isinstance(capture, Capture) else capture
        cross: State = {} if states is None else states.layers[0]["cross"]
        run = _Pass(x, rows, memory, _seen(x, rows, states), [weights_of([cell]) for cell in cells], cross, shows)
        self._enter(run, states)
        given = cells[0].reads(x).unbind(1)  # what tokens give to the gates, made once
        plans = self._plans(run, slice(0, 1)) if rows.documents is None else None  # the same for every step
        asking, read, said = list[Tensor](), list[Tensor](), list[Tensor]()
        for t, (token, row) in enumerate(zip(x.unbind(1), given, strict=True)):
            asks = self._step(run, cells, t, token, row, plans)
            asking.append(asks.state)
            read += [] if asks.read is None else [asks.read]
            said += [] if asks.said is None else [asks.said]
        asked = torch.stack(asking, dim=1)
        if not said:
            found = torch.stack(read, dim=1) if read else self._read(run, asked, slice(None), None)
            hidden = self.readout(asked, found, x)
        else:
            hidden = torch.stack(said, dim=1)
        if states is not None:
            self._leave(run, states)
        captured = ({"cross": torch.cat(run.captured, dim=2)},) if run.captured else ()
        return Output(functional.dropout(hidden, self.place.dropout, self.training), rows, captured=captured)

    def led(self, x: Tensor, rows: TokenLayout, memory: Memory, read: Callable[[int, Tensor], Tensor | None]) -> Output:
        """The same, but that each row but the first reads what `read` makes of what was said at the one before it,
        (B, R) -> (B, E), or as None its own token."""
        cells = cast("list[Cell]", list(self.layers))
        run = _Pass(x, rows, memory, _seen(x, rows, None), [weights_of([cell]) for cell in cells], {}, capture=False)
        self._enter(run, None)
        plans = self._plans(run, slice(0, 1)) if rows.documents is None else None
        hidden = list[Tensor]()
        for t, own in enumerate(x.unbind(1)):
            made = read(t, hidden[-1]) if hidden else None
            token = own if made is None else made
            asks = self._step(run, cells, t, token, cells[0].reads(token), plans)
            said = asks.said
            if said is None:
                found = asks.read
                if found is None:
                    found = self._read(run, asks.state.unsqueeze(1), slice(t, t + 1), plans).squeeze(1)
                said = self.readout(asks.state, found, token)
            hidden.append(functional.dropout(said, self.place.dropout, self.training))
        return Output(torch.stack(hidden, dim=1), rows)

    def _step(self, run: _Pass, cells: list[Cell], t: int, token: Tensor, given: Tensor, plans: Plans | None) -> _Asked:
        """One row through all layers, which read `token`, (B, E), as (B, G): what asks the memory, and as far as it did
        so now, what came of it."""
        if run.seen is not None and run.seen.begins[t]:
            self._begin(run, run.seen, t)
        asked, read, said = run.top, None, None
        if self.feeding:
            read = self._read(run, asked.unsqueeze(1), slice(t, t + 1), plans).squeeze(1) if self.previous else None
            feed = cells[0].fed
            assert feed is not None, "what is fed has a way in"
            given = given + feed(read if self.previous else run.fed)
        for layer, cell in enumerate(cells):
            if layer:
                given = cell.reads(functional.dropout(run.now[layer - 1][0][0], self.place.dropout, self.training))
            after = self.make.step(given.unsqueeze(0), run.now[layer], run.weights[layer])
            run.now[layer] = after if run.seen is None else run.seen.leaving(t, after, run.now[layer])
        if not self.previous:
            asked = run.top
            if self.feeding:
                read = self._read(run, asked.unsqueeze(1), slice(t, t + 1), plans).squeeze(1)
                said = run.fed = self.readout(asked, read, token)
        return _Asked(asked, read, said)

    def _begin(self, run: _Pass, seen: Places, t: int) -> None:
        """Puts the sequences whose document begins with row `t` where the encoder left that document."""
        assert run.rows.documents is not None, "only documents begin"
        first = self.first(run.memory, run.rows.documents[:, t].expand(run.x.shape[0]))
        run.now = [seen.entering(t, state, begun) for state, begun in zip(run.now, first, strict=True)]
        if run.fed is not None:
            run.fed = run.fed.masked_fill(seen.new[0, :, t, None], 0)

    def _read(self, run: _Pass, asking: Tensor, at: slice, plans: Plans | None) -> Tensor:
        """(B, T, K) -> (B, T, M): what some rows read of the memory."""
        (crossing,) = self._crossing
        capture: dict[str, Tensor] | None = {} if run.capture else None
        plans = self._plans(run, at) if plans is None else plans
        read = crossing(asking, _rows(run.rows, at), run.memory, run.cross, plans, capture)
        if capture:
            run.captured.append(capture["weights"])
        return read

    def _plans(self, run: _Pass, at: slice) -> Plans:
        (crossing,) = self._crossing
        return crossing.plans(run.x, _rows(run.rows, at), run.memory, run.capture)

    def _enter(self, run: _Pass, states: States | None) -> None:
        """Puts states where the rows before left them, or the encoder its own; where documents begin, they are put."""
        batch = run.x.shape[0]
        kept = states.layers if states is not None and states.past else None
        if kept is not None:
            run.now = [tuple(layer["cell"][part].unsqueeze(0) for part in PARTS[: self.make.parts]) for layer in kept]
        elif run.seen is None:
            run.now = self.first(run.memory)
        else:
            none = run.x.new_zeros(1, batch, self.place.width)
            run.now = [(none,) * self.make.parts for _ in self.layers]
        if self.feeding and not self.previous:
            run.fed = run.x.new_zeros(batch, self.shape.width) if kept is None else kept[0]["fed"]["rows"]

    def _leave(self, run: _Pass, states: States) -> None:
        for kept, state in zip(states.layers, run.now, strict=True):
            kept["cell"] = {name: part[0] for name, part in zip(PARTS, state, strict=False)}
        if run.fed is not None:
            states.layers[0]["fed"] = {"rows": run.fed}
        states.past += run.x.shape[1]

    def start(self, batch: int, length: int) -> States:
        """What it holds is made by the first step, of the memory that comes with it."""
        layers: list[dict[str, State]] = [{"cell": {}, "cross": {}} for _ in self.layers]
        return States(layers, room=length)

    def kernels(self, device: str = "cpu", rows: int = 0) -> tuple[str, ...]:
        return self._crossing[0].kernels(device, rows)

    def costs(self, trains: Load, decodes: Load | None) -> Iterator[ComponentCost]:
        """Of a training example: each row through all layers, and one reading of the memory for each."""
        cells = cast("list[Cell]", list(self.layers))
        kept = len(cells) * self.make.parts * self.place.width
        if self.feeding and not self.previous:
            kept += self.shape.width
        yield ComponentCost("cells", (self.layers,), sum(cell.flops(trains.queries) for cell in cells), kept)
        state = self.cross.cost(decodes).state if decodes is not None else 0
        yield ComponentCost("cross", (self.cross,), self.cross.cost(trains).flops, state)
        yield ComponentCost("first", (self.first,), self.first.flops())
        yield ComponentCost("readout", (self.readout,), self.readout.flops(trains.queries))


def _rows(rows: TokenLayout, at: slice) -> TokenLayout:
    return TokenLayout(*(None if vector is None else vector[:, at] for vector in rows))  # type: ignore[arg-type]  # a NamedTuple loses which field may be None


def _seen(x: Tensor, rows: TokenLayout, states: States | None) -> Places | None:
    """Where documents begin among these rows, behind those that the states hold already."""
    held = None if states is None else states.extend(rows)
    if rows.documents is None:
        return None
    documents = rows.documents.expand(x.shape[0], -1).unsqueeze(0)
    if states is None or not states.past:
        return places(documents)
    assert held is not None, "states say what they hold"
    assert held.documents is not None, "rows that come later say no more than the first ones did"
    return places(documents, filled(held.documents[:, : states.past])[:, -1:].expand(x.shape[0], -1).unsqueeze(0))
