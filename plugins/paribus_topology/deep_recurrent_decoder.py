"""Deep recurrent decoder, whose first layer attends to a memory for all layers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple, cast, final

import torch
from torch import Tensor, nn
from torch.nn import functional

from paribus import (
    Attention,
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
from paribus_topology.document_boundaries import DocumentBoundaries
from paribus_topology.initial_states import InitialStates
from paribus_topology.learned_initial_states import LearnedInitialStates
from paribus_topology.recurrent_decoder import STATE_NAMES, Plans, pass_boundaries, slice_layout


class DeepDecoderOptions(NamedTuple):
    """Options of a deep recurrent decoder."""

    kind: CellKind
    residual_from: int  # first layer, from 1, whose input is added to its output
    learned_start: bool  # states start from a parameter, not from the encoder's
    backwards: bool  # every layer of the encoder also reads backwards, and ends at its first token


@dataclass
class _DecoderPass:
    """One pass: tensors that its layers share, and the states before it."""

    x: Tensor  # (B, T, K)
    layout: TokenLayout
    memory: Memory
    boundaries: DocumentBoundaries | None
    cross: State  # keys and values of the memory, computed once
    capture: bool
    states: list[Hidden]  # of each layer, (1, B, K) each part
    starts: dict[int, list[Hidden]] = field(default_factory=dict)  # initial states of documents, by their first token
    captured: list[Tensor] = field(default_factory=list)


@final
class DeepRecurrentDecoder(Stage):
    """Deep recurrent decoder, whose first layer attends to a memory for all layers (Wu et al. 2016, section 3).

    The state of the first layer before a token attends, and the context is an input of every layer at that token. So
    only the first layer alternates with attention; each other layer reads all tokens at once. From layer
    `residual_from` on, the input of a layer is added to its output. Padding leaves states unchanged, and each document
    starts from the encoder's state of that document, or from a learned one. (B, T, K) -> (B, T, K).
    """

    def __init__(
        self,
        place: Shape,
        embedding: nn.ModuleDict | None,
        cross: tuple[Attention, CrossAttention],
        options: DeepDecoderOptions,
        *,
        memory_width: int,
    ) -> None:
        super().__init__()
        self.shape, self.embedding = place, embedding
        self.cell_type, self.residual_from = CELLS[options.kind], options.residual_from
        self.layers = nn.ModuleList(
            Cell(options.kind, place.width, place.width, fed_width=memory_width) for _ in range(place.layers)
        )
        parts = self.cell_type.parts
        self.first: InitialStates | LearnedInitialStates = (
            LearnedInitialStates(place, parts=parts)
            if options.learned_start
            else InitialStates(place, parts=parts, backwards=options.backwards)
        )
        self.cross, crossing = cross
        self._crossing = (crossing,)

    def forward(
        self,
        x: Tensor,
        layout: TokenLayout,
        memory: Memory,
        states: States | None = None,
        capture: Capture | bool = False,
    ) -> Output:
        """(B, T, K) -> (B, T, K)."""
        boundaries = pass_boundaries(x, layout, states)
        cross: State = {} if states is None else states.layers[0]["cross"]
        capture_weights = capture.weights if isinstance(capture, Capture) else capture
        before = self._states_before(x, memory, boundaries, states)
        run = _DecoderPass(x, layout, memory, boundaries, cross, capture_weights, before)
        hidden, contexts = self._attend(run)
        for layer in range(1, len(self.layers)):
            output = self._run_layer(run, layer, self._dropped(hidden), contexts)
            hidden = output + hidden if layer + 1 >= self.residual_from else output
        if states is not None:
            _save_states(run, states)
        captured = ({"cross": torch.cat(run.captured, dim=2)},) if run.captured else ()
        return Output(self._dropped(hidden), layout, captured=captured)

    def _attend(self, run: _DecoderPass) -> tuple[Tensor, Tensor]:
        """Run the first layer, and return its output, (B, T, K), and the contexts that it read, (B, T, M)."""
        cell = self._cell(0)
        weights, projection = stack_weights([cell]), cell.fed
        assert projection is not None, "every layer is fed a context"
        plans = self._plans(run, slice(0, 1)) if run.layout.documents is None else None  # the same for every step
        outputs, contexts = list[Tensor](), list[Tensor]()
        for t, gates in enumerate(cell.reads(run.x).unbind(1)):
            self._start_documents(run, 0, t)
            context = self._read_memory(run, run.states[0][0][0], slice(t, t + 1), plans)
            outputs.append(self._step(run, 0, t, gates + projection(context), weights))
            contexts.append(context)
        return torch.stack(outputs, dim=1), torch.stack(contexts, dim=1)

    def _run_layer(self, run: _DecoderPass, layer: int, x: Tensor, contexts: Tensor) -> Tensor:
        """Run another layer over all tokens: (B, T, K), (B, T, M) -> (B, T, K)."""
        cell = self._cell(layer)
        weights, projection = stack_weights([cell]), cell.fed
        assert projection is not None, "every layer is fed a context"
        outputs = list[Tensor]()
        for t, gates in enumerate((cell.reads(x) + projection(contexts)).unbind(1)):
            self._start_documents(run, layer, t)
            outputs.append(self._step(run, layer, t, gates, weights))
        return torch.stack(outputs, dim=1)

    def _step(self, run: _DecoderPass, layer: int, t: int, gates: Tensor, weights: RecurrentWeights) -> Tensor:
        """Run one token through one layer and return its output, (B, K)."""
        state = run.states[layer]
        next_state = self.cell_type.step(gates.unsqueeze(0), state, weights)
        run.states[layer] = next_state if run.boundaries is None else run.boundaries.state_after(t, next_state, state)
        return run.states[layer][0][0]

    def _start_documents(self, run: _DecoderPass, layer: int, t: int) -> None:
        """Set sequences whose document starts at token `t` to the initial state of that document."""
        if run.boundaries is None or not run.boundaries.any_start[t]:
            return
        assert run.layout.documents is not None, "boundaries need documents"
        if t not in run.starts:
            run.starts[t] = self.first(run.memory, run.layout.documents[:, t].expand(run.x.shape[0]))
        run.states[layer] = run.boundaries.state_before(t, run.states[layer], run.starts[t][layer])

    def _read_memory(self, run: _DecoderPass, query: Tensor, step: slice, plans: Plans | None) -> Tensor:
        """Return the context of one step: (B, K) -> (B, M)."""
        (crossing,) = self._crossing
        capture: dict[str, Tensor] | None = {} if run.capture else None
        layout = slice_layout(run.layout, step)
        plans = self._plans(run, step) if plans is None else plans
        context = crossing(query.unsqueeze(1), layout, run.memory, run.cross, plans, capture)
        if capture:
            run.captured.append(capture["weights"])
        return context.squeeze(1)

    def _plans(self, run: _DecoderPass, steps: slice) -> Plans:
        (crossing,) = self._crossing
        return crossing.plans(run.x, slice_layout(run.layout, steps), run.memory, run.capture)

    def _states_before(
        self, x: Tensor, memory: Memory, boundaries: DocumentBoundaries | None, states: States | None
    ) -> list[Hidden]:
        """Return the states of the decoding cache, initial ones, or zeros for documents to fill in."""
        if states is not None and states.past:
            names = STATE_NAMES[: self.cell_type.parts]
            return [tuple(layer["cell"][name].unsqueeze(0) for name in names) for layer in states.layers]
        if boundaries is None:
            initial: list[Hidden] = self.first(memory)
            return initial
        zeros = x.new_zeros(1, x.shape[0], self.shape.width)
        return [(zeros,) * self.cell_type.parts for _ in self.layers]

    def _cell(self, layer: int) -> Cell:
        return cast("Cell", self.layers[layer])

    def _dropped(self, x: Tensor) -> Tensor:
        return functional.dropout(x, self.shape.dropout, self.training)

    def start(self, batch: int, length: int) -> States:
        """Return empty decoding states; the first step computes them from its memory."""
        layers: list[dict[str, State]] = [{"cell": {}, "cross": {}} for _ in self.layers]
        return States(layers, capacity=length)

    def kernels(self, device: str = "cpu", queries: int = 0) -> tuple[str, ...]:
        return self._crossing[0].kernels(device, queries)

    def costs(self, trains: Load, decodes: Load | None) -> Iterator[ComponentCost]:
        """Yield the costs of a training example: each token through all layers, and one read of the memory each."""
        state_size = len(self.layers) * self.cell_type.parts * self.shape.width
        flops = sum(self._cell(layer).flops(trains.queries) for layer in range(len(self.layers)))
        yield ComponentCost("cells", (self.layers,), flops, state_size)
        state = self.cross.cost(decodes).state if decodes is not None else 0
        yield ComponentCost("cross", (self.cross,), self.cross.cost(trains).flops, state)
        yield ComponentCost("first", (self.first,), self.first.flops())


def _save_states(run: _DecoderPass, states: States) -> None:
    for layer, state in zip(states.layers, run.states, strict=True):
        layer["cell"] = {name: part[0] for name, part in zip(STATE_NAMES, state, strict=False)}
    states.past += run.x.shape[1]
