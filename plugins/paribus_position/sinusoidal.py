"""Sinusoidal absolute positions (`sinusoidal`)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Annotated, ClassVar, Literal, final

import torch
from torch import Tensor, nn
from torch.nn import functional

from paribus import Position, PositionTraits, Range, Role, Shape
from paribus_position.position_cache import PositionCache, materialise

Layout = Literal["interleaved", "halves"]


@final
class Sinusoidal(Position):
    """Sinusoidal absolute position embedding (Vaswani et al. 2017).

    "Attention Is All You Need", section 3.5. Channel 2i is sin(p / base^(2i/D)) and channel 2i+1 the cosine, as in the
    paper. Its code (tensor2tensor, and fairseq) is `halves`, all sines before all cosines, and `closed`: with half =
    floor(D/2), the i-th frequency is base^(-i/(half - 1)), and an odd width ends in 0. CTRL uses halves without
    `closed`; fairseq numbers positions from 2. A learned `scale` starts at D^-1/2: "Transformer Quality in Linear Time"
    (Hua et al. 2022).
    """

    traits: ClassVar[PositionTraits] = {"hooks": ["embed"], "bias": "none", "owner": "stack"}
    roles: ClassVar[Mapping[str, Role]] = {"gain": "gain"}

    def __init__(
        self,
        shape: Shape,
        *,
        base: Annotated[float, "base of the wavelengths; the longest is 2 pi * base", Range(above=1)] = 10_000.0,
        layout: Annotated[Layout, "interleaved sines and cosines, or all sines first (CTRL, M2M-100)"] = "interleaved",
        closed: Annotated[bool, "end at the frequency 1 / base (tensor2tensor, M2M-100)"] = False,
        offset: Annotated[int, "number of the first position (M2M-100: 2)", Range(0)] = 0,
        scale: Annotated[Literal["none", "learned"], "learned: multiply by a learned scalar (crammed BERT)"] = "none",
    ) -> None:
        super().__init__()
        self.width = shape.embedding_width
        self.base = base
        self.halves = layout == "halves"
        self.closed = closed
        self.offset = offset
        self.gain = nn.Parameter(torch.empty(())) if scale == "learned" else None
        self._waves: PositionCache[Tensor] = PositionCache()

    def embed(self, x: Tensor, positions: Tensor) -> Tensor:
        """(B, T, E), (B|1, T) -> (B, T, E)."""
        waves = self._waves(positions, x.dtype, lambda: self.waves(positions, x.dtype))
        return x + waves if self.gain is None else x + waves * (self.gain / math.sqrt(self.width))

    def waves(self, positions: Tensor, dtype: torch.dtype) -> Tensor:
        """(B|1, T) -> (B|1, T, E)."""
        angles = (positions + self.offset).unsqueeze(-1) * self.frequencies(positions.device)
        sin, cos = angles.sin(), angles.cos()
        waves = torch.cat([sin, cos], dim=-1) if self.halves else torch.stack([sin, cos], dim=-1).flatten(-2)
        missing = self.width - waves.shape[-1]  # odd widths: append a 0 (closed), or drop the last cosine
        return materialise((functional.pad(waves, (0, missing)) if missing else waves).to(dtype))

    def frequencies(self, device: torch.device) -> Tensor:
        """Return frequencies in float64: (ceil(D/2),), or (floor(D/2),) if `closed`."""
        if self.closed:
            half = self.width // 2
            exponents = torch.arange(half, dtype=torch.float64, device=device) / max(half - 1, 1)
        else:
            exponents = torch.arange(0, self.width, 2, dtype=torch.float64, device=device) / self.width
        return self.base**-exponents

    def position_limit(self) -> int | None:
        return None
