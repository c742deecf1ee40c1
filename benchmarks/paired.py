"""Two programs on one noisy machine: which is faster, by how much, and how sure that is.

Contestants take turns within each round, in an order that is rotated, so that whatever slows the machine down slows
both. What is reported is the median over rounds of their ratio within a round, with a bootstrap interval; the ratio of
two separate runs means nothing here.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, final

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Verdict = Literal["met", "not met", "inconclusive"]
RESAMPLES = 2000


@final
@dataclass(frozen=True)
class Estimate:
    """A figure, and the interval that holds it in 95 of 100 such runs."""

    figure: float
    low: float
    high: float

    def times(self, factor: float) -> Estimate:
        """The same in another unit."""
        return Estimate(self.figure * factor, self.low * factor, self.high * factor)

    def __str__(self) -> str:
        return f"{self.figure:.4g} [{self.low:.4g}, {self.high:.4g}]"


@final
class Rounds:
    """Contestants that take turns; `times[name]` grows by one CPU time, in seconds, with each call.

    `clock` runs a contestant and says how long it took: `cpu_time`, unless it runs elsewhere and says so itself.
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
        first = self._round % len(names)
        self._round += 1
        for name in names[first:] + names[:first]:
            self.times[name].append(self.clock(self.contestants[name]))

    def warm(self, times: int = 2) -> float:
        """Runs rounds that do not count, and returns the seconds that the last of them took."""
        for _ in range(times):
            started = time.perf_counter()
            self()
            took = time.perf_counter() - started
        self.times = {name: [] for name in self.contestants}
        return took


def cpu_time(run: Callable[[], object]) -> float:
    """CPU seconds of this process, which others cannot slow down by taking the core away; with no collection in it."""
    collects = gc.isenabled()
    gc.disable()
    try:
        started = time.process_time()
        run()
        return time.process_time() - started
    finally:
        if collects:
            gc.enable()


def ratio(times: Sequence[float] | Floats, reference: Sequence[float] | Floats) -> Estimate:
    """How many times as long as the reference it takes."""
    return estimate(np.asarray(times) / np.asarray(reference))


def difference(times: Sequence[float], reference: Sequence[float]) -> Estimate:
    """How much longer than the reference it takes."""
    return estimate(np.asarray(times) - np.asarray(reference))


def exponent(sizes: Sequence[int], rounds: Sequence[Sequence[float]]) -> Estimate:
    """By which power of the size a cost grows: the slope through all sizes, of each round's costs (round by size)."""
    x = np.log(np.asarray(sizes, dtype=np.float64))
    x -= x.mean()
    slopes: Floats = np.log(np.asarray(rounds, dtype=np.float64)) @ x / (x @ x)
    return estimate(slopes)


def local_slopes(sizes: Sequence[int], rounds: Sequence[Sequence[float]]) -> list[float]:
    """The power between each size and the next, of the median costs: whether one power tells the whole of it."""
    medians: Floats = np.median(np.asarray(rounds, dtype=np.float64), axis=0)
    steps: Floats = np.diff(np.log(medians)) / np.diff(np.log(np.asarray(sizes, dtype=np.float64)))
    return [float(step) for step in steps]


def estimate(samples: Sequence[float] | Floats) -> Estimate:
    """The median of a round's figures, and its bootstrap interval; the same samples always give the same one."""
    values: Floats = np.asarray(samples, dtype=np.float64)
    assert values.ndim == 1, values.shape
    assert values.size, "there is no round to estimate from"
    drawn = np.random.default_rng(0).integers(0, values.size, (RESAMPLES, values.size))
    medians: Floats = np.median(values[drawn], axis=1)
    low, high = np.quantile(medians, [0.025, 0.975])
    return Estimate(float(np.median(values)), float(low), float(high))


def verdict(
    measured: Estimate,
    limit: float,
    *,
    at_most: bool = True,
    twin: Estimate | None = None,
    contrast: Estimate | None = None,
    nothing: float = 1.0,
) -> Verdict:
    """Whether `measured` keeps to the limit; only an interval that lies wholly on one side says so.

    `twin` is the reference against itself, which ought to be `nothing`: where it strays further than the limit lies
    from there, such a limit cannot be judged. `contrast` is known to miss the limit: where it is not seen to, neither.
    """
    if twin is not None and max(abs(twin.low - nothing), abs(twin.high - nothing)) > abs(limit - nothing):
        return "inconclusive"
    if contrast is not None and verdict(contrast, limit, at_most=at_most) != "not met":
        return "inconclusive"
    if at_most:
        return "met" if measured.high <= limit else "not met" if measured.low > limit else "inconclusive"
    return "met" if measured.low >= limit else "not met" if measured.high < limit else "inconclusive"
