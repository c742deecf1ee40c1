"""How columns of a head are turned, two by two."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from paribus_position.remembered import stored


class Turns(NamedTuple):
    """Cosines and signed sines of all rows, computed once in float64 and kept for whatever is turned by them."""

    double: tuple[Tensor, Tensor]
    single: tuple[Tensor, Tensor]  # for float32, and for what is narrower


def turns(cos: Tensor, sin: Tensor, *, interleaved: bool = False) -> Turns:
    """(B|1, 1, T, R/2) each -> (B|1, 1, T, R) each: column i is paired with i + R/2, or with its neighbour."""
    if interleaved:
        cos, sin = cos.repeat_interleave(2, dim=-1), torch.stack([-sin, sin], dim=-1).flatten(-2)
    else:
        cos, sin = torch.cat([cos, cos], dim=-1), torch.cat([-sin, sin], dim=-1)
    return Turns((cos, sin), (stored(cos.float()), stored(sin.float())))


def turn(x: Tensor, turns: Turns, *, interleaved: bool = False) -> Tensor:
    """(B, H, T, K) -> (B, H, T, K), of which the first R columns are turned."""
    cos, sin = turns.double if x.dtype == torch.float64 else turns.single
    columns, whole = cos.shape[-1], x.shape[-1]
    turned = x if columns == whole else x[..., :columns]
    partners = turned.unflatten(-1, (-1, 2)).flip(-1).flatten(-2) if interleaved else turned.roll(columns // 2, -1)
    turned = torch.addcmul(turned * cos, partners, sin).to(x.dtype)
    return turned if columns == whole else torch.cat([turned, x[..., columns:]], dim=-1)
