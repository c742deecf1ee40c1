"""Learned absolute positions (`learned`)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, ClassVar, final

from torch import Tensor, nn

from paribus import (
    AtLeast,
    ConvertedTensor,
    DataError,
    Position,
    PositionTraits,
    Problem,
    Range,
    Role,
    Shape,
    WeightConverter,
    copy_table_rows,
)


@final
class Learned(Position, WeightConverter):
    """Learned absolute position embedding (Gehring et al. 2017).

    "Convolutional Sequence to Sequence Learning". Left padding may have negative positions, which read the first
    vector. A position beyond the table is an error, not a clamp: raised here on a CPU, and by the device's bounds check
    on a GPU, where a check here would wait for the device. RoBERTa and BART number positions from 2, after the id of
    padding: use an `offset` of 2.
    """

    traits: ClassVar[PositionTraits] = {"hooks": ["embed"], "bias": "none", "owner": "stack", "table": True}
    roles: ClassVar[Mapping[str, Role]] = {"table.weight": "embedding"}

    def __init__(
        self,
        shape: Shape,
        *,
        length: Annotated[int | None, "positions in the table; null: dims.length", Range(1), AtLeast("length")] = None,
        offset: Annotated[int, "unused vectors before the first position (RoBERTa, BART: 2)", Range(0)] = 0,
    ) -> None:
        super().__init__()
        self.offset = offset
        self.length = length or shape.length
        self.table = nn.Embedding(self.length + offset, shape.embedding_width)

    def embed(self, x: Tensor, positions: Tensor) -> Tensor:
        """(B, T, E), (B|1, T) -> (B, T, E)."""
        index = positions.clamp(min=0)
        try:
            embedded: Tensor = self.table(index + self.offset if self.offset else index)
        except IndexError:
            raise DataError(self._problem(int(positions.max()))) from None
        return x + embedded

    def _problem(self, highest: int) -> Problem:
        return Problem(
            code="position-out-of-range",
            path="position.length",
            message=f"`learned` has a table of {self.length} positions, got position {highest}",
            valid=f"positions up to {self.length - 1}, or a `length` of at least {highest + 1}",
        )

    def position_limit(self) -> int:
        return self.length

    def convert_weights(self, other: nn.Module) -> Mapping[str, ConvertedTensor]:
        """Convert a longer or shorter table: copy the positions that both have."""
        if not isinstance(other, Learned):
            return {}
        converted = copy_table_rows(self.table.weight, other.table.weight, self.offset, other.offset)
        return {} if converted is None else {"table.weight": converted}
