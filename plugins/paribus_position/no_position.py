"""The position `none`."""

from __future__ import annotations

from typing import ClassVar, final

from paribus import Position, Shape, Traits


@final
class NoPosition(Position):
    """Tells the model nothing of where a row is: what a causal mask gives away is all there is."""

    traits: ClassVar[Traits] = {"moments": [], "bias": "none", "owner": "stack"}

    def __init__(self, shape: Shape) -> None:
        super().__init__()

    def reach(self) -> int | None:
        return None
