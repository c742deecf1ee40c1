"""Power laws of a loss over the scales of a study, for each variant, with intervals over seeds."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, final

from paribus.analysis.formatting import compact, percent
from paribus.analysis.p_values import interval, summarise
from paribus.analysis.table import Row, Section, Table

MIN_SCALES: Final = 3  # any two points lie on a power law
SIZE: Final = "parameters"


@final
class Line(NamedTuple):
    """Power law of one seed: log loss = log_factor - exponent log N, a line on logarithmic axes."""

    exponent: float
    log_factor: float

    def log_loss(self, size: float) -> float:
        return self.log_factor - self.exponent * math.log(size)


@final
@dataclass(frozen=True, kw_only=True)
class PowerLaw:
    """Loss as a power of the number of parameters, loss = c N^-exponent, fitted for each seed."""

    exponent: float  # mean over seeds
    low: float | None
    high: float | None
    seeds: int
    smallest: float  # parameters
    largest: float
    deviation: float  # largest relative distance of a mean loss from the law
    lines: Mapping[int, Line]  # of each seed
    points: Sequence[tuple[float, Mapping[int, float]]]  # parameters and the losses of these seeds, of each scale
    against_baseline: tuple[float, float | None, float | None] | None = None  # difference of exponents

    def to_json(self) -> dict[str, Any]:
        return {
            **vars(self),
            "lines": [{"seed": seed, **line._asdict()} for seed, line in self.lines.items()],
            "points": [
                {SIZE: size, "losses": [{"seed": seed, "loss": loss} for seed, loss in losses.items()]}
                for size, losses in self.points
            ],
            "against_baseline": None if self.against_baseline is None else [*self.against_baseline],
        }


def fit_exponent(sizes: Sequence[float], losses: Sequence[float]) -> float:
    """Return the exponent of the least-squares line through the logarithms; positive where the loss falls."""
    return fit_line(sizes, losses).exponent


def fit_line(sizes: Sequence[float], losses: Sequence[float]) -> Line:
    """Return the least-squares line through the logarithms."""
    slope, intercept = _line([math.log(size) for size in sizes], [math.log(loss) for loss in losses])
    return Line(-slope, intercept)


def _line(xs: Sequence[float], ys: Sequence[float]) -> tuple[float, float]:
    """Return slope and intercept of the least-squares line."""
    mean_x, mean_y = math.fsum(xs) / len(xs), math.fsum(ys) / len(ys)
    covariance = math.fsum((x - mean_x) * (y - mean_y) for x, y in zip(xs, ys, strict=True))
    slope = covariance / math.fsum((x - mean_x) ** 2 for x in xs)
    return slope, mean_y - slope * mean_x


def power_law(
    sizes: Sequence[float],
    losses: Sequence[Mapping[int, float]],
    *,
    alpha: float,
    baseline: Mapping[int, float] | None = None,
) -> PowerLaw | None:
    """Fit a power law to the losses of a variant, `losses[scale][seed]`; None if it cannot be fitted.

    Each seed that all scales have gives an exponent. Their interval is Student's t, and that of the difference from
    the exponents of the `baseline` is paired by seed.
    """
    lines = seed_lines(sizes, losses)
    exponents = {seed: line.exponent for seed, line in lines.items()}
    if not exponents:
        return None
    low, high = interval(summarise([*exponents.values()]), alpha) or (None, None)
    xs = [math.log(size) for size in sizes]
    means = [math.log(math.fsum(scale[seed] for seed in exponents) / len(exponents)) for scale in losses]
    slope, intercept = _line(xs, means)
    deviation = max(abs(math.expm1(y - intercept - slope * x)) for x, y in zip(xs, means, strict=True))
    pairs = [exponents[seed] - baseline[seed] for seed in exponents if seed in baseline] if baseline else []
    difference = None
    if pairs:
        difference = (math.fsum(pairs) / len(pairs), *(interval(summarise(pairs), alpha) or (None, None)))
    return PowerLaw(
        exponent=math.fsum(exponents.values()) / len(exponents),
        low=low,
        high=high,
        seeds=len(exponents),
        smallest=min(sizes),
        largest=max(sizes),
        deviation=deviation,
        lines=lines,
        points=[(size, {seed: scale[seed] for seed in exponents}) for size, scale in zip(sizes, losses, strict=True)],
        against_baseline=difference,
    )


def seed_exponents(sizes: Sequence[float], losses: Sequence[Mapping[int, float]]) -> dict[int, float]:
    """Return the exponent of each seed that all scales have; empty where the logarithms cannot be fitted."""
    return {seed: line.exponent for seed, line in seed_lines(sizes, losses).items()}


def seed_lines(sizes: Sequence[float], losses: Sequence[Mapping[int, float]]) -> dict[int, Line]:
    """Return the line of each seed that all scales have; empty where the logarithms cannot be fitted."""
    if len(set(sizes)) < MIN_SCALES or min(sizes) <= 0:
        return {}
    seeds = sorted(set.intersection(*(set(scale) for scale in losses)))
    if any(not scale[seed] > 0 for scale in losses for seed in seeds):
        return {}
    return {seed: fit_line(sizes, [scale[seed] for scale in losses]) for seed in seeds}


def law_interval(lines: Sequence[Line], size: float, alpha: float) -> tuple[float, float | None, float | None]:
    """Return the loss of the mean line at a number of parameters, and the ends of its t-interval over seeds."""
    logs = [line.log_loss(size) for line in lines]
    loss, ends = math.exp(math.fsum(logs) / len(logs)), interval(summarise(logs), alpha)
    return (loss, None, None) if ends is None else (loss, math.exp(ends[0]), math.exp(ends[1]))


def scaling_sections(table: Table, scales: Mapping[str, Table]) -> Iterator[Section]:
    """Yield a section with the power law of each variant over three scales or more of other numbers of parameters."""
    if len(scales) < MIN_SCALES or table.better != "lower":
        return
    laws: dict[str, PowerLaw] = {}
    names = [table.baseline.variant, *(row.variant for row in table.rows)]
    baseline = seed_exponents(*_points(table.baseline.variant, scales))
    for name in names:
        sizes, losses = _points(name, scales)
        law = power_law(sizes, losses, alpha=table.alpha, baseline=baseline if name != names[0] else None)
        if law is not None:
            laws[name] = law
    if laws:
        yield Section(
            key="scaling",
            title=f"power laws of {table.metric} over {SIZE}",
            lines=(*(_text(name, law) for name, law in laws.items()), *_caption(table)),
            document={"laws": [{"variant": name, **law.to_json()} for name, law in laws.items()]},
        )


def _points(variant: str, scales: Mapping[str, Table]) -> tuple[list[float], list[Mapping[int, float]]]:
    """Return the number of parameters and the losses by seed of a variant at each scale that has it."""
    sizes: list[float] = []
    losses: list[Mapping[int, float]] = []
    for table in scales.values():
        row = next((row for row in (table.baseline, *table.rows) if row.variant == variant), None)
        size, values = None if row is None else _size(row), table.values.get(variant)
        if size is not None and values:
            sizes.append(size)
            losses.append(values)
    return sizes, losses


def _size(row: Row) -> float | None:
    return row.costs[SIZE].value if SIZE in row.costs else None


def _text(name: str, law: PowerLaw) -> str:
    smallest, largest = (compact(size, 1000, " kMGT") for size in (law.smallest, law.largest))
    text = f"{name}: exponent {law.exponent:.4f}{_interval(law.low, law.high, '.4f')}, n = {law.seeds}"
    if law.against_baseline is not None:
        difference, low, high = law.against_baseline
        text += f", {difference:+.4f}{_interval(low, high, '+.4f')} against the baseline"
    return f"{text}; {smallest} to {largest} {SIZE}, largest deviation {percent(law.deviation)}"


def _interval(low: float | None, high: float | None, form: str) -> str:
    return "" if low is None or high is None else f" [{low:{form}}, {high:{form}}]"


def _caption(table: Table) -> Iterator[str]:
    yield (
        "The loss is a power of the number of parameters, c N^-exponent, fitted by least squares to the logarithms of "
        f"each seed. The intervals ({percent(1 - table.alpha)}, each by itself) are Student's t over seeds: they hold "
        "noise of the training, not another shape of the curve. Nothing is said outside of this range, nor for another "
        "budget."
    )
