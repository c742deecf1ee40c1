"""The position `learned`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, ClassVar, final

import torch
from torch import Tensor, nn

from paribus import (
    AtLeast,
    ConvertedTensor,
    DataError,
    Position,
    Problem,
    Range,
    Role,
    Shape,
    Traits,
    WeightConverter,
    copy_table_rows,
)


@final
class Learned(Position, WeightConverter):
    """Adds a vector learned for each position: "Convolutional Sequence to Sequence Learning" (Gehring et al. 2017).

    Padding on the left may have negative positions, which read the first vector. A position past the table is an error
    and never a clamp: found here on a CPU, and by the device's own bounds check on a GPU, where asking would stall it.
    RoBERTa and BART number their rows from 2 on, behind the id of padding: an `offset` of 2 has their table.
    """

    traits: ClassVar[Traits] = {"moments": ["embed"], "bias": "none", "owner": "stack", "table": True}
    roles: ClassVar[Mapping[str, Role]] = {"table.weight": "embedding"}

    def __init__(
        self,
        shape: Shape,
        *,
        length: Annotated[int | None, "places in the table; null: dims.length", Range(1), AtLeast("length")] = None,
        offset: Annotated[int, "rows of the table before the first place, never read (RoBERTa, BART: 2)", Range(0)] = 0,
    ) -> None:
        super().__init__()
        self.offset = offset
        self.places = length or shape.length
        self.table = nn.Embedding(self.places + offset, shape.embedded)

    def embed(self, x: Tensor, positions: Tensor) -> Tensor:
        """(B, T, E), (B|1, T) -> (B, T, E)."""
        if positions.device.type == "cpu" and not torch.compiler.is_compiling():
            self._within(positions)
        rows = positions.clamp(min=0)
        placed: Tensor = self.table(rows + self.offset if self.offset else rows)
        return x + placed

    def _within(self, positions: Tensor) -> None:
        last = int(positions.max())
        if last >= self.places:
            raise DataError(
                Problem(
                    code="past-the-table",
                    path="position.length",
                    what=f"position {last} is past the table of `learned`, which has {self.places} places",
                    valid=f"positions up to {self.places - 1}, or a `length` of at least {last + 1}",
                )
            )

    def reach(self) -> int:
        return self.places

    def adopt(self, other: nn.Module) -> Mapping[str, ConvertedTensor]:
        """Of a longer or shorter table, the places that both have."""
        if not isinstance(other, Learned):
            return {}
        kept = copy_table_rows(self.table.weight, other.table.weight, self.offset, other.offset)
        return {} if kept is None else {"table.weight": kept}
