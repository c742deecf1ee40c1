"""Layers of recurrent cells that read a source, forwards or both ways."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import cast, final

import torch
from torch import Tensor, nn
from torch.nn import functional

from paribus import ComponentCost, Embedding, Load, Output, Shape, Stage, States, TokenLayout
from paribus_topology.cells import CELLS, FUSED, Cell, Hidden, Kind, weights_of
from paribus_topology.places import Places, places


@final
class RecurrentEncoder(Stage):
    """Reads rows forwards, and backwards as well where there are two ways; a layer reads both of the one below it.

    A state is held over padding and begins anew with each document, so that no way begins in padding. Beside its rows
    it hands on the states that each row left behind in every layer: those of the way forwards, or the h of the way
    back where there is one; only of the last that it came to, where a fused kernel reads them all. (B, S, E) ->
    (B, S, N*K), and (B, S|1, L, P, K).
    """

    def __init__(
        self,
        place: Shape,
        embedding: nn.ModuleDict | None,
        table: Embedding | None,
        *,
        kind: Kind,
        reads: int,
        ways: int,
    ) -> None:
        super().__init__()
        self.place, self.reads, self.ways = place, reads, ways
        self.shape = replace(place, width=ways * place.width)
        self.embedding = embedding
        self.table = table
        self.kind, self.make = kind, CELLS[kind]
        widths = [reads, *[ways * place.width] * (place.layers - 1)]
        self.layers = nn.ModuleList(
            nn.ModuleList(Cell(kind, width, place.width) for _ in range(ways)) for width in widths
        )

    @property
    def enters(self) -> Shape:
        return replace(self.place, width=self.reads)

    def forward(self, x: Tensor, rows: TokenLayout) -> Output:
        """(B, S, E) -> (B, S, N*K)."""
        seen = None
        if rows.documents is not None:
            documents = rows.documents.expand(x.shape[0], -1)
            seen = places(torch.stack([documents, documents.flip(1)][: self.ways]))
        fused = FUSED.get(self.kind) if seen is None else None  # which knows of no rows to skip
        handed: list[Tensor] = []
        for index, cells in enumerate(self._cells()):
            if index:
                x = functional.dropout(x, self.place.dropout, self.training)
            if fused is not None:
                x, ended = fused(x, self._none(x), [weight for cell in cells for weight in cell.listed()], self.ways)
                left = torch.stack([part[0] for part in ended] if self.ways == 1 else [ended[0][1]], dim=1)
                handed.append(left.unsqueeze(1))  # of the row alone that each way came to last
                continue
            parts = self._read(cells, x, seen)  # (N, B, S, K) each
            handed.append(torch.stack([part[0] for part in parts] if self.ways == 1 else [parts[0][1]], dim=2))
            x = parts[0].permute(1, 2, 0, 3).flatten(2)
        return Output(x, rows, handed=torch.stack(handed, dim=2))

    def _cells(self) -> list[list[Cell]]:
        return [cast("list[Cell]", list(cast("nn.ModuleList", layer))) for layer in self.layers]

    def _read(self, cells: list[Cell], x: Tensor, seen: Places | None) -> Hidden:
        """(B, S, E) -> the state behind each row, (N, B, S, K) each part."""
        given = torch.stack([turned(cell.reads(x), way, 1) for way, cell in enumerate(cells)])  # (N, B, S, G)
        none = self._none(x)
        state, weights, left = none, weights_of(cells), list[Hidden]()
        for t, row in enumerate(given.unbind(2)):
            if seen is not None:
                state = seen.entering(t, state, none)
            after = self.make.step(row, state, weights)
            state = after if seen is None else seen.leaving(t, after, state)
            left.append(state)
        stacked = (torch.stack(part, dim=2) for part in zip(*left, strict=True))
        return tuple(torch.stack([turned(part, way, 1) for way, part in enumerate(each)]) for each in stacked)

    def _none(self, x: Tensor) -> Hidden:
        return (x.new_zeros(self.ways, x.shape[0], self.place.width),) * self.make.parts

    def start(self, batch: int, length: int) -> States:
        raise NotImplementedError("nobody steps a source")

    def kernels(self, device: str = "cpu", rows: int = 0) -> tuple[str, ...]:
        return ("its own",)

    def costs(self, trains: Load, decodes: Load | None) -> Iterator[ComponentCost]:
        if self.table is not None:
            yield ComponentCost("table", (self.table,))
        flops = sum(cell.flops(trains.queries) for cells in self._cells() for cell in cells)
        yield ComponentCost("cells", (self.layers,), flops)


def turned(x: Tensor, way: int, dim: int) -> Tensor:
    """Rows as a way comes to them: the second way from the last to the first; and the other way round."""
    return x.flip(dim) if way else x
