"""No position information (`none`)."""

from __future__ import annotations

from typing import ClassVar, final

from paribus import Position, PositionTraits, Shape


@final
class NoPosition(Position):
    """No position information, beyond what a causal mask reveals."""

    traits: ClassVar[PositionTraits] = {"hooks": [], "bias": "none", "owner": "stack"}

    def __init__(self, shape: Shape) -> None:
        super().__init__()

    def position_limit(self) -> int | None:
        return None
