"""The position `rope`."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal, final

from torch import Tensor

from paribus import Position, Problem, Range, Shape, SpecError, Traits
from paribus_position.remembered import Remembered
from paribus_position.rotary_scaling import Scaling, check, frequencies, temperature
from paribus_position.turning import Turns, turn, turns


@final
class Rotary(Position):
    """Turns queries and keys by an angle that grows with their position: "RoFormer" (Su et al. 2021).

    Column i of a head is turned together with column i + R/2 (GPT-NeoX, Llama), where R is the part of the width that
    is turned, by p * theta^(-2i/R); columns from R on stay as they are. Interleaved, columns 2i and 2i + 1 are turned
    together instead (RoFormer, GPT-J): the same but for the order of the columns.
    """

    traits: ClassVar[Traits] = {"moments": ["rotate"], "bias": "none", "owner": "stack"}

    def __init__(
        self,
        shape: Shape,
        *,
        theta: Annotated[float, "the longest wavelength is 2 pi times this", Range(above=1)] = 10_000.0,
        fraction: Annotated[
            float, "how much of each head is turned, from its first column", Range(above=0, high=1)
        ] = 1.0,
        interleaved: Annotated[bool, "whether a column is turned with its neighbour (GPT-J)"] = False,
        scaling: Scaling = Scaling(),
    ) -> None:
        super().__init__()
        check(scaling)
        self.theta = theta
        self.fraction = fraction
        self.interleaved = interleaved
        self.scaling = scaling
        self.temperature = temperature(scaling)
        self._turned(shape.head_width)
        self._tables: Remembered[Turns] = Remembered()

    def tables(self, positions: Tensor, width: int) -> Turns:
        """(B|1, T) -> (B|1, 1, T, R) each."""
        return self._tables(positions, width, lambda: self._angles(positions, width))

    def _angles(self, positions: Tensor, width: int) -> Turns:
        by_row = frequencies(self.theta, self._turned(width), self.scaling, positions.device)
        angles = positions.unsqueeze(1).unsqueeze(-1) * by_row  # (B|1, 1, T, R/2)
        cos, sin = angles.cos(), angles.sin()
        if self.temperature != 1:
            cos, sin = cos * self.temperature, sin * self.temperature
        return turns(cos, sin, interleaved=self.interleaved)

    def rotate(self, x: Tensor, tables: Turns, side: Literal["query", "key"]) -> Tensor:
        """(B, H, T, K) -> (B, H, T, K)."""
        return turn(x, tables, interleaved=self.interleaved)

    def _turned(self, width: int) -> int:
        turned = round(width * self.fraction, 3)  # 0.333333 of 6 is 2
        if turned >= 2 and turned % 2 == 0:
            return int(turned)
        what = f"`fraction` ({self.fraction:g}) of the head width ({width}) must be an even number of columns, "
        evens = [f"{even / width:g}" for even in range(2, width + 1, 2)]
        valid = ", ".join(evens) or "a head width of at least 2"
        raise SpecError(Problem(code="odd-rotation", path="position", what=f"{what}but is {turned:g}", valid=valid))

    def reach(self) -> int | None:
        return None
