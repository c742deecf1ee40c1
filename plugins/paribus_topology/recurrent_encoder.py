"""Recurrent encoder, whose layers read in one direction or in both."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import cast, final

import torch
from torch import Tensor, nn
from torch.nn import functional

from paribus import ComponentCost, Embedding, Load, Output, Shape, Stage, States, TokenLayout
from paribus_topology.cells import CELLS, FUSED, Cell, CellKind, Hidden, stack_weights
from paribus_topology.document_boundaries import DocumentBoundaries, document_boundaries


@final
class RecurrentEncoder(Stage):
    """Recurrent encoder; each layer reads all directions of the layer below.

    `directions` of each layer are 1 or 2. From layer `residual_from` on, counted from 1, the input of a layer is added
    to its output. Padding leaves states unchanged, and each document starts from zero. Besides its output it returns
    the states after each token in every layer: those of the forward direction, or h of the backward one if every layer
    has one. A fused kernel returns only the last. (B, S, E) -> (B, S, N*K), and (B, S|1, L, P, K).
    """

    def __init__(
        self,
        place: Shape,
        embedding: nn.ModuleDict | None,
        table: Embedding | None,
        *,
        kind: CellKind,
        input_width: int,
        directions: Sequence[int],
        residual_from: int | None = None,
    ) -> None:
        super().__init__()
        self.place, self.input_width, self.directions = place, input_width, max(directions)
        self.returns_backward = min(directions) == 2
        self.residual_from = place.layers + 1 if residual_from is None else residual_from
        self.shape = replace(place, width=directions[-1] * place.width)
        self.embedding = embedding
        self.table = table
        self.kind, self.cell_type = kind, CELLS[kind]
        widths = [input_width, *(count * place.width for count in directions[:-1])]
        self.layers = nn.ModuleList(
            nn.ModuleList(Cell(kind, width, place.width) for _ in range(count))
            for width, count in zip(widths, directions, strict=True)
        )

    @property
    def input_shape(self) -> Shape:
        return replace(self.place, width=self.input_width)

    def forward(self, x: Tensor, layout: TokenLayout) -> Output:
        """(B, S, E) -> (B, S, N*K)."""
        boundaries = None
        if layout.documents is not None:
            documents = layout.documents.expand(x.shape[0], -1)
            boundaries = document_boundaries(torch.stack([documents, documents.flip(1)][: self.directions]))
        layer_states: list[Tensor] = []
        for index, cells in enumerate(self._cells()):
            layer_input = x
            if index:
                x = functional.dropout(x, self.place.dropout, self.training)
            x, states = self._run_layer(cells, x, boundaries)
            if index + 1 >= self.residual_from:
                x = x + layer_input
            layer_states.append(states)
        return Output(x, layout, extra=torch.stack(layer_states, dim=2))

    def _run_layer(self, cells: list[Cell], x: Tensor, boundaries: DocumentBoundaries | None) -> tuple[Tensor, Tensor]:
        """Return the output of a layer, (B, S, N*K), and the states that the encoder returns, (B, S|1, P, K)."""
        fused = FUSED.get(self.kind) if boundaries is None else None  # fused kernels do not support padding
        if fused is not None:
            weights = [weight for cell in cells for weight in cell.torch_weights()]
            x, final = fused(x, self._zero_state(x, len(cells)), weights, len(cells))
            last = [final[0][1]] if self.returns_backward else [part[0] for part in final]
            return x, torch.stack(last, dim=1).unsqueeze(1)  # only the last state of each direction
        parts = self._run_cells(cells, x, boundaries)  # (N, B, S, K) each
        states = [parts[0][1]] if self.returns_backward else [part[0] for part in parts]
        return parts[0].permute(1, 2, 0, 3).flatten(2), torch.stack(states, dim=2)

    def _cells(self) -> list[list[Cell]]:
        return [cast("list[Cell]", list(cast("nn.ModuleList", layer))) for layer in self.layers]

    def _run_cells(self, cells: list[Cell], x: Tensor, boundaries: DocumentBoundaries | None) -> Hidden:
        """Return the states after each token: (B, S, E) -> (N, B, S, K) each part."""
        gates = torch.stack(
            [flip_direction(cell.reads(x), direction, 1) for direction, cell in enumerate(cells)]
        )  # (N, B, S, G)
        initial = self._zero_state(x, len(cells))
        boundaries = None if boundaries is None else boundaries.first(len(cells))
        state, weights, states = initial, stack_weights(cells), list[Hidden]()
        for t, token_gates in enumerate(gates.unbind(2)):
            if boundaries is not None:
                state = boundaries.state_before(t, state, initial)
            next_state = self.cell_type.step(token_gates, state, weights)
            state = next_state if boundaries is None else boundaries.state_after(t, next_state, state)
            states.append(state)
        stacked = (torch.stack(part, dim=2) for part in zip(*states, strict=True))
        return tuple(
            torch.stack([flip_direction(part, direction, 1) for direction, part in enumerate(direction_states)])
            for direction_states in stacked
        )

    def _zero_state(self, x: Tensor, directions: int) -> Hidden:
        return (x.new_zeros(directions, x.shape[0], self.place.width),) * self.cell_type.parts

    def start(self, batch: int, length: int) -> States:
        raise NotImplementedError("the encoder is not decoded step by step")

    def kernels(self, device: str = "cpu", queries: int = 0) -> tuple[str, ...]:
        return ("its own",)

    def costs(self, trains: Load, decodes: Load | None) -> Iterator[ComponentCost]:
        if self.table is not None:
            yield ComponentCost("table", (self.table,))
        flops = sum(cell.flops(trains.queries) for cells in self._cells() for cell in cells)
        yield ComponentCost("cells", (self.layers,), flops)


def flip_direction(x: Tensor, direction: int, dim: int) -> Tensor:
    """Reverse tokens for the backward direction, and back."""
    return x.flip(dim) if direction else x
