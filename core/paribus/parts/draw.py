"""Random numbers for data, keyed by (seed, epoch, example, name, place) and by nothing that a model consumed.

A counter is hashed instead of a generator being advanced, so a row's draws do not depend on the batch it came in, on
the width it was padded to, or on how many worker processes there are.
"""

from __future__ import annotations

from typing import final

import numpy as np
import torch
from torch import Tensor

from paribus.keyed import key64

_STRIDE_EXAMPLE = np.uint64(0x9E3779B97F4A7C15)  # odd constants: multiplying by them permutes the 64-bit integers
_STRIDE_PLACE = np.uint64(0xD1B54A32D192ED03)
_MIX_1 = np.uint64(0xBF58476D1CE4E5B9)  # splitmix64's finaliser (Steele, Lea & Flood 2014)
_MIX_2 = np.uint64(0x94D049BB133111EB)


@final
class Draw:
    """Draws for the examples `index` of one epoch, a row for each."""

    def __init__(self, seed: int, epoch: int, index: Tensor) -> None:
        self.seed = seed
        self.epoch = epoch
        self.index = index

    def uniform(self, name: str, count: int) -> Tensor:
        """(B, count) float32 in [0, 1), independent between names."""
        return torch.from_numpy((self._bits(name, count) >> np.uint64(40)).astype(np.float32) * np.float32(2.0**-24))

    def below(self, name: str, high: int, count: int) -> Tensor:
        """(B, count) int64 in [0, high), for `high` up to 2^31."""
        high_bits = self._bits(name, count) >> np.uint64(33)  # 31 bits x 31 bits stays within 62
        return torch.from_numpy(((high_bits * np.uint64(high)) >> np.uint64(31)).astype(np.int64))

    def _bits(self, name: str, count: int) -> np.ndarray[tuple[int, int], np.dtype[np.uint64]]:
        key = np.uint64(key64(self.seed, self.epoch, name))
        rows = _mixed(self.index.numpy().astype(np.uint64) * _STRIDE_EXAMPLE + key)
        places = np.arange(count, dtype=np.uint64) * _STRIDE_PLACE
        return _mixed(rows[:, None] + places[None, :])


def _mixed(x: np.ndarray[tuple[int, ...], np.dtype[np.uint64]]) -> np.ndarray[tuple[int, ...], np.dtype[np.uint64]]:
    x = (x ^ (x >> np.uint64(30))) * _MIX_1
    x = (x ^ (x >> np.uint64(27))) * _MIX_2
    return x ^ (x >> np.uint64(31))


def order(seed: int, epoch: int, count: int) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """In which order the `count` examples of an epoch are seen."""
    return np.random.Generator(np.random.Philox(key=key64(seed, epoch, "order"))).permutation(count)
