"""Recurrent encoder, in one direction or in both."""

from __future__ import annotations

from collections.abc import Iterator
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
    """Recurrent encoder; each layer reads both directions of the layer below.

    Padding leaves states unchanged, and each document starts from zero. Besides its output it returns the states after
    each token in every layer: those of the forward direction, or h of the backward one if there is one. A fused kernel
    returns only the last. (B, S, E) -> (B, S, N*K), and (B, S|1, L, P, K).
    """

    def __init__(
        self,
        place: Shape,
        embedding: nn.ModuleDict | None,
        table: Embedding | None,
        *,
        kind: CellKind,
        input_width: int,
        directions: int,
    ) -> None:
        super().__init__()
        self.place, self.input_width, self.directions = place, input_width, directions
        self.shape = replace(place, width=directions * place.width)
        self.embedding = embedding
        self.table = table
        self.kind, self.cell_type = kind, CELLS[kind]
        widths = [input_width, *[directions * place.width] * (place.layers - 1)]
        self.layers = nn.ModuleList(
            nn.ModuleList(Cell(kind, width, place.width) for _ in range(directions)) for width in widths
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
        fused = FUSED.get(self.kind) if boundaries is None else None  # fused kernels do not support padding
        layer_states: list[Tensor] = []
        for index, cells in enumerate(self._cells()):
            if index:
                x = functional.dropout(x, self.place.dropout, self.training)
            if fused is not None:
                x, final = fused(
                    x,
                    self._zero_state(x),
                    [weight for cell in cells for weight in cell.torch_weights()],
                    self.directions,
                )
                final_states = torch.stack(
                    [part[0] for part in final] if self.directions == 1 else [final[0][1]], dim=1
                )
                layer_states.append(final_states.unsqueeze(1))  # only the last state of each direction
                continue
            parts = self._run_cells(cells, x, boundaries)  # (N, B, S, K) each
            layer_states.append(
                torch.stack([part[0] for part in parts] if self.directions == 1 else [parts[0][1]], dim=2)
            )
            x = parts[0].permute(1, 2, 0, 3).flatten(2)
        return Output(x, layout, extra=torch.stack(layer_states, dim=2))

    def _cells(self) -> list[list[Cell]]:
        return [cast("list[Cell]", list(cast("nn.ModuleList", layer))) for layer in self.layers]

    def _run_cells(self, cells: list[Cell], x: Tensor, boundaries: DocumentBoundaries | None) -> Hidden:
        """Return the states after each token: (B, S, E) -> (N, B, S, K) each part."""
        gates = torch.stack(
            [flip_direction(cell.reads(x), direction, 1) for direction, cell in enumerate(cells)]
        )  # (N, B, S, G)
        initial = self._zero_state(x)
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

    def _zero_state(self, x: Tensor) -> Hidden:
        return (x.new_zeros(self.directions, x.shape[0], self.place.width),) * self.cell_type.parts

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
