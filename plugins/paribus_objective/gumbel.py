"""Draws from scores while a model runs, by numbers that are an example's own.

What is drawn depends on an example's key and on the place, and on nothing that another example or module consumed.
"""

from __future__ import annotations

from typing import Final

import torch
from torch import Tensor

_STRIDE_PLACE: Final = 0x9E3779B97F4A7C15 - 2**64  # those of `Draw`, as whole numbers with a sign
_STRIDE_ENTRY: Final = 0xD1B54A32D192ED03 - 2**64
_MIX_1: Final = 0xBF58476D1CE4E5B9 - 2**64
_MIX_2: Final = 0x94D049BB133111EB - 2**64


def uniform(keys: Tensor, place: int, count: int) -> Tensor:
    """(B,) int64 -> (B, count) float32 in (0, 1), of each example's key."""
    at = (place * _STRIDE_PLACE + 2**63) % 2**64 - 2**63  # as numbers of 64 bits come around, which Python's do not
    rows = _mixed(keys + at)
    entries = torch.arange(count, device=keys.device) * _STRIDE_ENTRY
    bits = _shifted(_mixed(rows.unsqueeze(1) + entries), 41)  # 23 bits, and a half: neither 0 nor 1 can be drawn
    return (bits.float() + 0.5) * 2.0**-23


def noise(keys: Tensor, place: int, count: int) -> Tensor:
    """(B,) -> (B, count) of a Gumbel distribution: the largest of scores and it is drawn by their softmax."""
    return -torch.log(-torch.log(uniform(keys, place, count)))


def _mixed(x: Tensor) -> Tensor:
    """Each number hashed: splitmix64's finaliser (Steele, Lea & Flood 2014)."""
    x = (x ^ _shifted(x, 30)) * _MIX_1
    x = (x ^ _shifted(x, 27)) * _MIX_2
    return x ^ _shifted(x, 31)


def _shifted(x: Tensor, by: int) -> Tensor:
    """To the right, with zeros behind it: torch's own keeps the sign."""
    return (x >> by) & ((1 << (64 - by)) - 1)
