"""Times of interleaved rounds on a noisy machine, and exponents of growth with bootstrap intervals.

Contestants take turns within each round, in a rotated order, so that a slow phase of the machine affects all of them.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
RESAMPLES = 2000


@final
@dataclass(frozen=True)
class Estimate:
    """Estimate with its 95 % interval."""

    figure: float
    low: float
    high: float

    def times(self, factor: float) -> Estimate:
        """Return the estimate in another unit."""
        return Estimate(self.figure * factor, self.low * factor, self.high * factor)

    def rounded(self) -> str:
        """Return the estimate and its interval with two decimals."""
        return f"{self.figure:.2f} [{self.low:.2f}, {self.high:.2f}]"

    def __str__(self) -> str:
        return f"{self.figure:.4g} [{self.low:.4g}, {self.high:.4g}]"


@final
class Rounds:
    """Contestants that take turns; each call appends one CPU time in seconds to `times[name]`.

    `clock` runs a contestant and returns its duration; default `cpu_time`.
    """

    def __init__(
        self, contestants: Mapping[str, Callable[[], object]], clock: Callable[[Any], float] | None = None
    ) -> None:
        self.contestants = dict(contestants)
        self.clock = clock or cpu_time
        self.times: dict[str, list[float]] = {name: [] for name in contestants}
        self._round = 0

    def __call__(self) -> None:
        names = list(self.contestants)
        offset = self._round % len(names)
        self._round += 1
        for name in names[offset:] + names[:offset]:
            self.times[name].append(self.clock(self.contestants[name]))

    def warm(self, times: int = 2) -> float:
        """Run warm-up rounds, and return the seconds of the last one."""
        for _ in range(times):
            started = time.perf_counter()
            self()
            duration = time.perf_counter() - started
        self.times = {name: [] for name in self.contestants}
        return duration


def cpu_time(run: Callable[[], object]) -> float:
    """Return CPU seconds of a call, without garbage collection; other processes do not count."""
    collects = gc.isenabled()
    gc.disable()
    try:
        started = time.process_time()
        run()
        return time.process_time() - started
    finally:
        if collects:
            gc.enable()


def exponent(sizes: Sequence[int], rounds: Sequence[Sequence[float]]) -> Estimate:
    """Return the exponent of cost over size: the log-log slope through all sizes, of each round (round by size)."""
    x = np.log(np.asarray(sizes, dtype=np.float64))
    x -= x.mean()
    slopes: Floats = np.log(np.asarray(rounds, dtype=np.float64)) @ x / (x @ x)
    return estimate(slopes)


def local_slopes(sizes: Sequence[int], rounds: Sequence[Sequence[float]]) -> list[float]:
    """Return the exponents between adjacent sizes, of the median costs, which show whether one exponent suffices."""
    medians: Floats = np.median(np.asarray(rounds, dtype=np.float64), axis=0)
    steps: Floats = np.diff(np.log(medians)) / np.diff(np.log(np.asarray(sizes, dtype=np.float64)))
    return [float(step) for step in steps]


def estimate(samples: Sequence[float] | Floats) -> Estimate:
    """Return the median of the rounds, with a bootstrap interval that is deterministic."""
    values: Floats = np.asarray(samples, dtype=np.float64)
    assert values.ndim == 1, values.shape
    assert values.size, "at least one round is required"
    resampled = np.random.default_rng(0).integers(0, values.size, (RESAMPLES, values.size))
    medians: Floats = np.median(values[resampled], axis=1)
    low, high = np.quantile(medians, [0.025, 0.975])
    return Estimate(float(np.median(values)), float(low), float(high))
