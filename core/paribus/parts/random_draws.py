"""Random draws for data, keyed by (seed, epoch, example, name, index), independent of the model's randomness.

A counter is hashed, no generator is advanced: draws of an example do not depend on its batch, the padded length or the
number of worker processes.
"""

from __future__ import annotations

from typing import final

import numpy as np
import torch
from torch import Tensor

from paribus.random_keys import key64

_Bits = np.ndarray[tuple[int, ...], np.dtype[np.uint64]]

# Odd constants: multiplying by them permutes the 64-bit integers. The first is 2^64 over the golden ratio.
_STRIDE_EXAMPLE = np.uint64(0x9E3779B97F4A7C15)
_STRIDE_PLACE = np.uint64(0xD1B54A32D192ED03)
_MIX_1 = np.uint64(0xBF58476D1CE4E5B9)  # splitmix64's finaliser (Steele, Lea & Flood 2014)
_MIX_2 = np.uint64(0x94D049BB133111EB)


@final
class Draw:
    """Random draws for the examples `index` of one epoch."""

    def __init__(
        self, seed: int, epoch: int, index: Tensor, progress: float = 1.0, places: Tensor | None = None
    ) -> None:
        self.seed = seed
        self.epoch = epoch
        self.index = index  # (B,)
        self.places = index if places is None else places  # (B,): of the examples in the order of their epoch
        self.timed = False  # True after `progress` was read
        self._progress = progress

    @property
    def progress(self) -> float:
        """Completed share of the training, from 0 to 1; it changes no draw."""
        self.timed = True
        return self._progress

    def uniform(self, name: str, count: int) -> Tensor:
        """Return (B, count) float32 in [0, 1), independent between names; a longer draw starts with a shorter one."""
        bits = self._bits(name, count)
        bits >>= np.uint64(40)  # 24 bits are what a float32 holds exactly
        values = bits.view(np.int64).astype(np.float32)  # signed: twice as fast to convert
        values *= np.float32(2.0**-24)
        return torch.from_numpy(values)

    def below(self, name: str, high: int, count: int) -> Tensor:
        """Return (B, count) int64 in [0, high), for `high` up to 2^31."""
        assert 0 < high <= 2**31, high
        bits = self._bits(name, count)
        bits >>= np.uint64(33)  # 31 bits x 31 bits stays within 62
        bits *= np.uint64(high)
        bits >>= np.uint64(31)
        return torch.from_numpy(bits.view(np.int64))

    def spread(self, name: str) -> Tensor:
        """Return (B,) float64 in [0, 1), each uniform, and spread evenly over successive examples of the epoch's order.

        The additive sequence of the golden ratio, from a random start: any batch covers the interval almost as evenly
        as one draw from each of B equal parts, and an example does not depend on the size of its batch.
        """
        start = np.uint64(key64(self.seed, self.epoch, name))
        bits = self.places.numpy().astype(np.uint64) * _STRIDE_EXAMPLE + start
        bits >>= np.uint64(11)  # 53 bits are what a float64 holds exactly
        return torch.from_numpy(bits.astype(np.float64) * 2.0**-53)

    def _bits(self, name: str, count: int) -> _Bits:
        key = np.uint64(key64(self.seed, self.epoch, name))
        example_keys = _mix(self.index.numpy().astype(np.uint64) * _STRIDE_EXAMPLE + key)
        places = np.arange(count, dtype=np.uint64) * _STRIDE_PLACE
        return _mix(example_keys[:, None] + places)


def _mix(x: _Bits) -> _Bits:
    """Hash each number in place; temporary arrays cost more than the arithmetic."""
    shifted = x >> np.uint64(30)
    x ^= shifted
    x *= _MIX_1
    np.right_shift(x, np.uint64(27), out=shifted)
    x ^= shifted
    x *= _MIX_2
    np.right_shift(x, np.uint64(31), out=shifted)
    x ^= shifted
    return x


def order(seed: int, epoch: int, count: int) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """Return the order of the `count` examples of an epoch."""
    return np.random.Generator(np.random.Philox(key=key64(seed, epoch, "order"))).permutation(count)
