"""Rotation of pairs of channels, for `rope` and `xpos`."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from paribus_position.position_cache import materialise


class RotationTables(NamedTuple):
    """Cosines and signed sines of all positions, computed once in float64."""

    double: tuple[Tensor, Tensor]
    single: tuple[Tensor, Tensor]  # for float32 and narrower types


def rotation_tables(cos: Tensor, sin: Tensor, *, interleaved: bool = False) -> RotationTables:
    """Build tables (B|1, 1, T, R) from cosines and sines (B|1, 1, T, R/2)."""
    if interleaved:
        cos, sin = cos.repeat_interleave(2, dim=-1), torch.stack([-sin, sin], dim=-1).flatten(-2)
    else:
        cos, sin = torch.cat([cos, cos], dim=-1), torch.cat([-sin, sin], dim=-1)
    return RotationTables((cos, sin), (materialise(cos.float()), materialise(sin.float())))


def rotate_pairs(x: Tensor, tables: RotationTables, *, interleaved: bool = False) -> Tensor:
    """Rotate the first R channels: (B, H, T, K) -> (B, H, T, K)."""
    cos, sin = tables.double if x.dtype == torch.float64 else tables.single
    width, head_width = cos.shape[-1], x.shape[-1]
    rotated = x if width == head_width else x[..., :width]
    partners = rotated.unflatten(-1, (-1, 2)).flip(-1).flatten(-2) if interleaved else rotated.roll(width // 2, -1)
    rotated = torch.addcmul(rotated * cos, partners, sin).to(x.dtype)
    return rotated if width == head_width else torch.cat([rotated, x[..., width:]], dim=-1)
