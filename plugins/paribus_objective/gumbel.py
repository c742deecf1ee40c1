"""Gumbel noise during the forward pass, keyed by example.

A draw depends on the key of the example and on the position, and on nothing that another example or module consumed.
"""

from __future__ import annotations

from typing import Final

import torch
from torch import Tensor

_POSITION_STRIDE: Final = 0x9E3779B97F4A7C15 - 2**64  # the strides of `Draw`, as signed integers
_ENTRY_STRIDE: Final = 0xD1B54A32D192ED03 - 2**64
_MIX_1: Final = 0xBF58476D1CE4E5B9 - 2**64
_MIX_2: Final = 0x94D049BB133111EB - 2**64


def uniform(keys: Tensor, position: int, count: int) -> Tensor:
    """(B,) int64 -> (B, count) float32 in (0, 1), drawn from each example's key."""
    # Python's integers do not overflow as those of 64 bits do.
    offset = (position * _POSITION_STRIDE + 2**63) % 2**64 - 2**63
    position_keys = _hash(keys + offset)
    entries = torch.arange(count, device=keys.device) * _ENTRY_STRIDE
    bits = _logical_shift(_hash(position_keys.unsqueeze(1) + entries), 41)  # 23 bits; adding a half excludes 0 and 1
    return (bits.float() + 0.5) * 2.0**-23


def noise(keys: Tensor, position: int, count: int) -> Tensor:
    """(B,) -> (B, count) Gumbel noise: the argmax of scores plus noise is a sample from their softmax."""
    return -torch.log(-torch.log(uniform(keys, position, count)))


def _hash(x: Tensor) -> Tensor:
    """Hash each integer by the finalizer of splitmix64 (Steele, Lea & Flood 2014)."""
    x = (x ^ _logical_shift(x, 30)) * _MIX_1
    x = (x ^ _logical_shift(x, 27)) * _MIX_2
    return x ^ _logical_shift(x, 31)


def _logical_shift(x: Tensor, bits: int) -> Tensor:
    """Shift right and fill with zeros; torch's own shift keeps the sign."""
    return (x >> bits) & ((1 << (64 - bits)) - 1)
