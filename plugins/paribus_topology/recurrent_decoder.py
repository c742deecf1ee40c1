"""Recurrent decoder that attends to a memory at every step."""

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
from paribus_topology.cells import CELLS, Cell, CellKind, Hidden, RecurrentWeights, stack_weights
from paribus_topology.document_boundaries import DocumentBoundaries, document_boundaries, fill_padding
from paribus_topology.initial_states import InitialStates
from paribus_topology.learned_initial_states import LearnedInitialStates
from paribus_topology.readout import Readout

Plans = tuple[AttentionPlan, ...]
STATE_NAMES: Final = ("h", "c")


class _StepOutput(NamedTuple):
    """Result of one step."""

    query: Tensor  # (B, K): the state that attends to the memory
    context: Tensor | None  # (B, M), if the step attends to the memory
    output: Tensor | None  # (B, R), if the next step reads it


class DecoderOptions(NamedTuple):
    """Options of a recurrent decoder."""

    kind: CellKind
    query_previous: bool  # the query is the state before a token, not the one after it
    input_feeding: bool
    readout: Literal["maxout", "tanh"]
    backwards: bool  # the encoder also reads backwards, and ends at its first token
    learned_start: bool  # states start from a parameter, not from the encoder's


@dataclass
class _DecoderPass:
    """One pass: tensors that its steps share, and states carried from one step to the next."""

    x: Tensor  # (B, T, E)
    layout: TokenLayout
    memory: Memory
    boundaries: DocumentBoundaries | None
    weights: list[RecurrentWeights]
    cross: State  # keys and values of the memory, computed once
    capture: bool
    states: list[Hidden] = field(default_factory=list)  # of each layer, (1, B, K) each part
    fed_output: Tensor | None = None  # (B, R): the last output, with input feeding
    captured: list[Tensor] = field(default_factory=list)

    @property
    def top_state(self) -> Tensor:
        """(B, K)."""
        return self.states[-1][0][0]


@final
class RecurrentDecoder(Stage):
    """Recurrent decoder that attends to a memory.

    With `query_previous`, the state before a token attends, and the context is an input of the step (Bahdanau et al.
    2015). Otherwise the state after a token attends, and the readout is an input of the next step (Luong et al. 2015).
    Without `input_feeding`, neither is an input: all states are computed first and attend together. Padding leaves
    states unchanged, and each document starts from the encoder's state of that document, or from a learned one.
    (B, T, E) -> (B, T, R).
    """

    def __init__(
        self,
        place: Shape,
        shape: Shape,
        embedding: nn.ModuleDict | None,
        cross: tuple[Attention, CrossAttention],
        options: DecoderOptions,
        *,
        input_width: int,
        memory_width: int,
    ) -> None:
        super().__init__()
        self.place, self.shape, self.input_width = place, shape, input_width
        self.embedding = embedding
        kind, previous, input_feeding, readout, backwards, learned_start = options
        self.previous, self.input_feeding = previous, input_feeding
        self.cell_type, width = CELLS[kind], place.width
        fed_width = (memory_width if previous else shape.width) if input_feeding else 0
        self.layers = nn.ModuleList(
            Cell(kind, width if index else input_width, width, fed_width=0 if index else fed_width)
            for index in range(place.layers)
        )
        parts = self.cell_type.parts
        self.first: InitialStates | LearnedInitialStates = (
            LearnedInitialStates(place, parts=parts)
            if learned_start
            else InitialStates(place, parts=parts, backwards=backwards)
        )
        self.cross, crossing = cross
        self._crossing = (crossing,)
        token = input_width if previous else 0  # the state after a token has read it
        self.readout = Readout(readout, shape.width, state=width, context=memory_width, token=token)

    @property
    def input_shape(self) -> Shape:
        return replace(self.place, width=self.input_width)

    def forward(
        self,
        x: Tensor,
        layout: TokenLayout,
        memory: Memory,
        states: States | None = None,
        capture: Capture | bool = False,
    ) -> Output:
        """(B, T, E) -> (B, T, R)."""
        cells = cast("list[Cell]", list(self.layers))
        capture_weights = capture.weights if isinstance(capture, Capture) else capture
        cross: State = {} if states is None else states.layers[0]["cross"]
        run = _DecoderPass(
            x,
            layout,
            memory,
            pass_boundaries(x, layout, states),
            [stack_weights([cell]) for cell in cells],
            cross,
            capture_weights,
        )
        self._start_states(run, states)
        gates = cells[0].reads(x).unbind(1)  # gate inputs of all tokens, computed once
        plans = self._plans(run, slice(0, 1)) if layout.documents is None else None  # the same plan for every step
        queries, contexts, outputs = list[Tensor](), list[Tensor](), list[Tensor]()
        for t, (token, token_gates) in enumerate(zip(x.unbind(1), gates, strict=True)):
            step = self._step(run, cells, t, token, token_gates, plans)
            queries.append(step.query)
            contexts += [] if step.context is None else [step.context]
            outputs += [] if step.output is None else [step.output]
        stacked_queries = torch.stack(queries, dim=1)
        if not outputs:
            context = (
                torch.stack(contexts, dim=1) if contexts else self._read_memory(run, stacked_queries, slice(None), None)
            )
            hidden = self.readout(stacked_queries, context, x)
        else:
            hidden = torch.stack(outputs, dim=1)
        if states is not None:
            self._save_states(run, states)
        captured = ({"cross": torch.cat(run.captured, dim=2)},) if run.captured else ()
        return Output(functional.dropout(hidden, self.place.dropout, self.training), layout, captured=captured)

    def run_with_feedback(
        self, x: Tensor, layout: TokenLayout, memory: Memory, read: Callable[[int, Tensor], Tensor | None]
    ) -> Output:
        """Decode with inputs that depend on outputs.

        Each token but the first is replaced by `read(t, previous output)`, (B, R) -> (B, E), unless that is None.
        """
        cells = cast("list[Cell]", list(self.layers))
        run = _DecoderPass(
            x,
            layout,
            memory,
            pass_boundaries(x, layout, None),
            [stack_weights([cell]) for cell in cells],
            {},
            capture=False,
        )
        self._start_states(run, None)
        plans = self._plans(run, slice(0, 1)) if layout.documents is None else None
        hidden = list[Tensor]()
        for t, embedded in enumerate(x.unbind(1)):
            replacement = read(t, hidden[-1]) if hidden else None
            token = embedded if replacement is None else replacement
            step = self._step(run, cells, t, token, cells[0].reads(token), plans)
            output = step.output
            if output is None:
                context = step.context
                if context is None:
                    context = self._read_memory(run, step.query.unsqueeze(1), slice(t, t + 1), plans).squeeze(1)
                output = self.readout(step.query, context, token)
            hidden.append(functional.dropout(output, self.place.dropout, self.training))
        return Output(torch.stack(hidden, dim=1), layout)

    def _step(
        self, run: _DecoderPass, cells: list[Cell], t: int, token: Tensor, gates: Tensor, plans: Plans | None
    ) -> _StepOutput:
        """Run one token through all layers: `token` (B, E) as gate inputs (B, G)."""
        if run.boundaries is not None and run.boundaries.any_start[t]:
            self._start_documents(run, run.boundaries, t)
        query, context, output = run.top_state, None, None
        if self.input_feeding:
            context = (
                self._read_memory(run, query.unsqueeze(1), slice(t, t + 1), plans).squeeze(1) if self.previous else None
            )
            projection = cells[0].fed
            assert projection is not None, "input feeding has a projection"
            gates = gates + projection(context if self.previous else run.fed_output)
        for layer, cell in enumerate(cells):
            if layer:
                gates = cell.reads(functional.dropout(run.states[layer - 1][0][0], self.place.dropout, self.training))
            next_state = self.cell_type.step(gates.unsqueeze(0), run.states[layer], run.weights[layer])
            run.states[layer] = (
                next_state if run.boundaries is None else run.boundaries.state_after(t, next_state, run.states[layer])
            )
        if not self.previous:
            query = run.top_state
            if self.input_feeding:
                context = self._read_memory(run, query.unsqueeze(1), slice(t, t + 1), plans).squeeze(1)
                output = run.fed_output = self.readout(query, context, token)
        return _StepOutput(query, context, output)

    def _start_documents(self, run: _DecoderPass, boundaries: DocumentBoundaries, t: int) -> None:
        """Set sequences whose document starts at token `t` to the encoder's state of that document."""
        assert run.layout.documents is not None, "boundaries need documents"
        initial = self.first(run.memory, run.layout.documents[:, t].expand(run.x.shape[0]))
        run.states = [
            boundaries.state_before(t, state, initial_state)
            for state, initial_state in zip(run.states, initial, strict=True)
        ]
        if run.fed_output is not None:
            run.fed_output = run.fed_output.masked_fill(boundaries.starts[0, :, t, None], 0)

    def _read_memory(self, run: _DecoderPass, queries: Tensor, steps: slice, plans: Plans | None) -> Tensor:
        """Return the context of some steps: (B, T, K) -> (B, T, M)."""
        (crossing,) = self._crossing
        capture: dict[str, Tensor] | None = {} if run.capture else None
        plans = self._plans(run, steps) if plans is None else plans
        context = crossing(queries, slice_layout(run.layout, steps), run.memory, run.cross, plans, capture)
        if capture:
            run.captured.append(capture["weights"])
        return context

    def _plans(self, run: _DecoderPass, steps: slice) -> Plans:
        (crossing,) = self._crossing
        return crossing.plans(run.x, slice_layout(run.layout, steps), run.memory, run.capture)

    def _start_states(self, run: _DecoderPass, states: States | None) -> None:
        """Initialise states from the decoding cache, as `first` does, or with zeros for documents to fill in."""
        batch = run.x.shape[0]
        cached = states.layers if states is not None and states.past else None
        if cached is not None:
            run.states = [
                tuple(layer["cell"][part].unsqueeze(0) for part in STATE_NAMES[: self.cell_type.parts])
                for layer in cached
            ]
        elif run.boundaries is None:
            run.states = self.first(run.memory)
        else:
            zeros = run.x.new_zeros(1, batch, self.place.width)
            run.states = [(zeros,) * self.cell_type.parts for _ in self.layers]
        if self.input_feeding and not self.previous:
            run.fed_output = run.x.new_zeros(batch, self.shape.width) if cached is None else cached[0]["fed"]["output"]

    def _save_states(self, run: _DecoderPass, states: States) -> None:
        for layer, state in zip(states.layers, run.states, strict=True):
            layer["cell"] = {name: part[0] for name, part in zip(STATE_NAMES, state, strict=False)}
        if run.fed_output is not None:
            states.layers[0]["fed"] = {"output": run.fed_output}
        states.past += run.x.shape[1]

    def start(self, batch: int, length: int) -> States:
        """Return empty decoding states; the first step computes them from its memory."""
        layers: list[dict[str, State]] = [{"cell": {}, "cross": {}} for _ in self.layers]
        return States(layers, capacity=length)

    def kernels(self, device: str = "cpu", queries: int = 0) -> tuple[str, ...]:
        return self._crossing[0].kernels(device, queries)

    def costs(self, trains: Load, decodes: Load | None) -> Iterator[ComponentCost]:
        """Yield the costs of a training example: each token through all layers, and one read of the memory each."""
        cells = cast("list[Cell]", list(self.layers))
        state_size = len(cells) * self.cell_type.parts * self.place.width
        if self.input_feeding and not self.previous:
            state_size += self.shape.width
        yield ComponentCost("cells", (self.layers,), sum(cell.flops(trains.queries) for cell in cells), state_size)
        state = self.cross.cost(decodes).state if decodes is not None else 0
        yield ComponentCost("cross", (self.cross,), self.cross.cost(trains).flops, state)
        yield ComponentCost("first", (self.first,), self.first.flops())
        yield ComponentCost("readout", (self.readout,), self.readout.flops(trains.queries))


def slice_layout(layout: TokenLayout, steps: slice) -> TokenLayout:
    return TokenLayout(*(None if vector is None else vector[:, steps] for vector in layout))  # type: ignore[arg-type]  # a NamedTuple loses which field may be None


def pass_boundaries(x: Tensor, layout: TokenLayout, states: States | None) -> DocumentBoundaries | None:
    """Return the document boundaries of these tokens, after those in the decoding states."""
    whole_layout = None if states is None else states.extend(layout)
    if layout.documents is None:
        return None
    documents = layout.documents.expand(x.shape[0], -1).unsqueeze(0)
    if states is None or not states.past:
        return document_boundaries(documents)
    assert whole_layout is not None, "decoding states have a layout"
    assert whole_layout.documents is not None, "either all decoding steps have documents, or none"
    past_documents = fill_padding(whole_layout.documents[:, : states.past])[:, -1:]
    return document_boundaries(documents, past_documents.expand(x.shape[0], -1).unsqueeze(0))
