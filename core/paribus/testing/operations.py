"""Torch's counter of operations, and what it leaves out."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch.utils.flop_counter import FlopCounterMode


def counting() -> FlopCounterMode:
    """Torch's own counter, which knows of products and convolutions, and of Fourier transforms besides."""
    return FlopCounterMode(display=False, custom_mapping=dict.fromkeys(_TRANSFORMS, _transformed))


_TRANSFORMS = (torch.ops.aten._fft_c2c, torch.ops.aten._fft_r2c, torch.ops.aten._fft_c2r)


def _transformed(shape: Any, dims: list[int], *_: Any, out_shape: Any = None, **__: Any) -> int:
    """5 N log2 N for each transform of N numbers, by the convention of those who measure them (FFTW)."""
    size: int = math.prod(shape[dim] for dim in dims)
    transforms: int = math.prod(shape) // size
    return round(transforms * 5 * size * math.log2(size))
