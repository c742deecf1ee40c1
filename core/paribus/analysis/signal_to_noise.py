"""Signal to noise of each metric: how much models differ, compared with how much seeds and evaluations do."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, final

from paribus.analysis.p_values import f_quantile
from paribus.analysis.trials import ComparisonSpec, TrialEntry
from paribus.planning.last_evaluations import evaluations, with_last_mean

MIN_MODELS: Final = 3  # of two, the signal would be their difference
LAST: Final = 5  # evaluations around a straight line
MIN_EVALUATIONS: Final = 4
LEVEL: Final = 0.95
ROUNDING: Final = 1e-9  # a smaller noise, relative to the values, is that of rounding

Values = Sequence[Sequence[float]]  # by model and seed
Cells = Sequence[Sequence[TrialEntry]]  # by model and seed


@final
@dataclass(frozen=True, kw_only=True)
class Signal:
    """Signal to noise of a metric, from the trials of all models on the same seeds."""

    metric: str
    models: int  # number of variants with the baseline
    n: int  # number of seeds
    seed_noise: float  # standard deviation of a trial around the means of its model and of its seed
    evaluation_noise: float | None = None  # standard deviation of its last evaluations around a line
    signal: float | None = None  # standard deviation of the true means of the models
    ratio: float | None = None  # signal divided by the noise of seeds
    interval: tuple[float, float] | None = None  # 95 % interval of the ratio


def signals(models: Iterable[Mapping[int, TrialEntry]], comparison: ComparisonSpec) -> tuple[Signal, ...]:
    """Return the signal to noise of each metric that all trials have, that of the verdict first.

    `models` are the trials of each model by seed, of which the seeds count that all models have. Without two models
    and two seeds, the result is empty.
    """
    trials = list(models)
    seeds = sorted(set.intersection(*(set(own) for own in trials))) if trials else []
    if len(trials) < 2 or len(seeds) < 2:
        return ()
    cells = [[own[seed] for seed in seeds] for own in trials]
    names = dict.fromkeys([comparison.metric, *cells[0][0].result["metrics"]])
    return tuple(found for name in names for found in _signal(cells, name, comparison))


def _signal(cells: Cells, metric: str, comparison: ComparisonSpec) -> Iterator[Signal]:
    """Yield the signal to noise of a metric; nothing if a trial has no value of it."""
    last = 1 if metric == comparison.metric else comparison.last  # the verdict's is averaged already
    values: list[list[float]] = []
    for row in cells:
        numbers = [value for entry in row if (value := _value(entry, metric, last)) is not None]
        if len(numbers) < len(row):
            return
        values.append(numbers)
    found = signal_to_noise(metric, values)
    yield replace(found, evaluation_noise=_evaluation_noise(cells, metric))


def _value(entry: TrialEntry, metric: str, last: int) -> float | None:
    """Return a metric at the end of a trial: the mean of its last evaluations, or of all if there are fewer."""
    if last == 1 or entry.record is None:
        return entry.value(metric)
    count = max(1, min(last, len(evaluations(entry.record, metric))))
    return replace(entry, record=with_last_mean(entry.record, metric, count)).value(metric)


def signal_to_noise(metric: str, values: Values) -> Signal:
    """Return the signal to noise of a two-way layout, models by seeds, without its noise of evaluations.

    The mean squares of models and of the residual have the expectations noise² + n signal² and noise², and their
    ratio, divided by 1 + n (signal/noise)², has an F distribution if models and noise are normal.
    """
    models, n = len(values), len(values[0])
    own = [math.fsum(row) / n for row in values]
    of_seeds = [math.fsum(column) / models for column in zip(*values, strict=True)]
    mean = math.fsum(own) / models
    residuals = [value - own[i] - of_seeds[j] + mean for i, row in enumerate(values) for j, value in enumerate(row)]
    degrees = (models - 1, (models - 1) * (n - 1))
    noise = math.hypot(*residuals) / math.sqrt(degrees[1])
    if noise <= ROUNDING * max(abs(value) for row in values for value in row):
        noise = 0.0
    found = Signal(metric=metric, models=models, n=n, seed_noise=noise)
    if models < MIN_MODELS:
        return found
    between = n * math.fsum((it - mean) ** 2 for it in own) / degrees[0]
    signal = math.sqrt(max(0.0, between - noise**2) / n)
    if noise == 0:
        return replace(found, signal=signal)
    tail = (1 - LEVEL) / 2
    low, ratio, high = (
        math.sqrt(max(0.0, between / noise**2 / quantile - 1) / n)
        for quantile in (f_quantile(1 - tail, *degrees), 1.0, f_quantile(tail, *degrees))
    )
    return replace(found, signal=signal, ratio=ratio, interval=(low, high))


def _evaluation_noise(cells: Cells, metric: str) -> float | None:
    """Return the standard deviation of the last evaluations of trials around a straight line for each trial.

    What the variants of a seed have in common is left out: they read the same batches, and it cancels in a difference.
    None if a trial has fewer than four evaluations, or one that is not finite.
    """
    points = [[[] if it.record is None else evaluations(it.record, metric) for it in row] for row in cells]
    count = min(LAST, *(len(own) for row in points for own in row))
    lasts = [[own[-count:] for own in row] for row in points]
    if count < MIN_EVALUATIONS or not all(math.isfinite(value) for row in lasts for own in row for _, value in own):
        return None
    squares: list[float] = []
    for of_seed in zip(*lasts, strict=True):
        for values in zip(*map(_around_line, of_seed), strict=True):
            common = math.fsum(values) / len(values)
            squares += [(value - common) ** 2 for value in values]
    return math.sqrt(math.fsum(squares) / ((len(cells) - 1) * len(cells[0]) * (count - 2)))


def _around_line(points: Sequence[tuple[int, float]]) -> list[float]:
    """Return the residuals of points from their straight line."""
    x_mean = sum(x for x, _ in points) / len(points)
    y_mean = math.fsum(y for _, y in points) / len(points)
    spread = sum((x - x_mean) ** 2 for x, _ in points)
    slope = math.fsum((x - x_mean) * (y - y_mean) for x, y in points) / spread if spread else 0.0
    return [y - y_mean - slope * (x - x_mean) for x, y in points]
