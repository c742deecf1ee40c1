"""Kernelized relative positions (`kerple`)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, ClassVar, Final, Literal, final

import torch
from torch import Tensor, nn

from paribus import Pair, Position, PositionTraits, Role, Shape

LEAST: Final = 0.01  # of a and b


@final
class Kernelized(Position):
    """Kernelized relative positions, KERPLE (Chi et al. 2022).

    "Kernelized Relative Positional Embedding for Length Extrapolation". It subtracts a log(1 + b |i - j|) from each
    score, or a |i - j|^b. Each head has its a and b, the same in all layers; they begin at 1 (in the authors' code at
    random, up to 2 and 1), are learned, and are kept above 0, and the b of a power up to 2. In bidirectional stacks
    keys ahead are penalised like keys behind.
    """

    traits: ClassVar[PositionTraits] = {"hooks": ["bias"], "bias": "positions", "distance_bias": True, "owner": "stack"}
    roles: ClassVar[Mapping[str, Role]] = {"factor": "gain", "curve": "gain"}

    def __init__(
        self,
        shape: Shape,
        *,
        form: Annotated[Literal["log", "power"], "a log(1 + b |i - j|), or a |i - j|^b"] = "log",
    ) -> None:
        super().__init__()
        self.form = form
        self.factor, self.curve = (nn.Parameter(torch.empty(shape.heads)) for _ in "ab")

    def bias(self, pair: Pair) -> Tensor:
        """(B|1, H, T, S)."""
        dtype = torch.promote_types(pair.dtype, torch.float32)
        distance = (pair.q_positions.unsqueeze(-1) - pair.k_positions.unsqueeze(-2)).abs().unsqueeze(1).to(dtype)
        a = self.factor.to(dtype)[:, None, None].clamp(min=LEAST)
        b = self.curve.to(dtype)[:, None, None].clamp(min=LEAST)
        if self.form == "log":
            return -a * (b * distance).log1p()
        # The gradient of 0^b with respect to b has the logarithm of 0.
        power = distance.clamp(min=1).pow(b.clamp(max=2))
        return -a * power.masked_fill(distance == 0, 0.0)

    def position_limit(self) -> int | None:
        return None
