"""Cache of values computed from positions, for batches with the same positions."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Generic, TypeVar, final

import torch
from torch import Tensor

T = TypeVar("T")


@final
class PositionCache(Generic[T]):
    """Cache of the value computed from the most recent positions.

    Nearly every batch has the positions of the one before, and these values have no parameters. The cache works on a
    CPU only, because elsewhere comparing two tensors waits for the device, and only for positions that all examples
    share, because others are large and rarely repeat.
    """

    def __init__(self) -> None:
        self._last: tuple[Tensor, Hashable, T] | None = None

    def __call__(self, positions: Tensor, key: Hashable, compute: Callable[[], T]) -> T:
        """Return `compute()`, or its cached result for equal positions and the same `key`."""
        if not is_cacheable(positions):
            return compute()
        if self._last is not None:
            cached_positions, cached_key, value = self._last
            if cached_key == key and torch.equal(cached_positions, positions):
                return value
        value = compute()
        self._last = (positions.clone(), key, value)
        return value


def materialise(x: Tensor) -> Tensor:
    """Return `x` unchanged, but make torch.compile store it: otherwise each head and layer computes its sines again."""
    return x.as_strided(x.shape, x.stride()) if torch.compiler.is_compiling() else x


def is_cacheable(positions: Tensor) -> bool:
    """Return whether positions can be compared and cached: no tracer's tensor and no inference tensor."""
    if torch.compiler.is_compiling():  # first, because the compiler does not support all of the checks below
        return False
    plain = type(positions) is Tensor and positions.device.type == "cpu" and positions.shape[0] == 1
    return plain and not torch.is_inference_mode_enabled()
