"""Comparison of two sides of benchmark reports: the ratio of times for each benchmark, with intervals."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

from paribus.analysis.benchmark_reports import Benchmark, Report, check_same_machine
from paribus.analysis.benchmark_speeds import BATCHES, RUNS, Speed, TimedRounds, judge_speeds
from paribus.analysis.formatting import MAX_NAMES, NO_VALUE, Cell, Column, Grid, clean, percent, plural, row_cells, span
from paribus.errors import NotComparableError, Problem, join_names


@final
@dataclass(frozen=True, kw_only=True)
class BenchmarkRow:
    """The times of one benchmark before and after."""

    benchmark: str
    full_name: str
    rounds: tuple[int, int]
    before: float | None  # seconds
    after: float | None
    speed: Speed

    @property
    def verdict(self) -> str:
        return f"{self.speed.kind} ({self.speed.reason})" if self.speed.reason else self.speed.kind

    def to_json(self) -> dict[str, Any]:
        speed = {key: value for key, value in vars(self.speed).items() if key not in ("kind", "reason", "noise")}
        return {
            "benchmark": self.full_name,
            "metric": "seconds",
            "n": list(self.rounds),
            "before": self.before,
            "after": self.after,
            **speed,
            "a_a": self.speed.noise,
            "kind": self.speed.kind,
            "verdict": self.verdict,
        }


@final
@dataclass(frozen=True, kw_only=True, repr=False)
class BenchmarkComparison:
    """The differences between two sides of reports."""

    sides: tuple[str, str]
    rows: tuple[BenchmarkRow, ...]
    header: tuple[str, ...]  # name, code and date of each report
    warnings: tuple[str, ...]
    notes: tuple[str, ...]  # benchmarks that are on one side only
    caption: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        return {
            "before": self.sides[0],
            "after": self.sides[1],
            "reports": list(self.header),
            "rows": [row.to_json() for row in self.rows],
            "caption": list(self.caption),
            "warnings": list(self.warnings),
            "notes": list(self.notes),
        }

    def grid(self) -> Grid:
        heads = (
            Column("benchmark", wrap="name"),
            Column("before", align_right=True),
            Column("after", align_right=True),
            Column("after / before", key="ratio"),
            Column("A/A", align_right=True),
            Column("verdict", wrap="verdict"),
        )
        return Grid(
            title="time of a round: less is better",
            columns=heads,
            rows=[_cells(row) for row in self.rows],
            header=self.header,
            remarks=[("!", self.warnings), ("-", self.notes), ("·", self.caption)],
            records=[_record(row) for row in self.rows],
        )


def compare_benchmarks(
    baseline: Sequence[Report], candidate: Sequence[Report], *, across: bool = False
) -> BenchmarkComparison:
    """Return the comparison of two sides. Without `across`, they must have the same machine and versions."""
    warnings = [*check_same_machine([*baseline, *candidate], across=across), *_code_warnings(baseline, candidate)]
    common, notes = _paired(baseline, candidate)
    timed = {key: TimedRounds(before=_rounds(baseline, key), after=_rounds(candidate, key)) for key in common}
    speeds = judge_speeds(timed)
    names = [common[key].name for key in common]
    rows = []
    for key, bench in common.items():
        pair = timed[key]
        has_rounds = all(map(len, [*pair.before, *pair.after]))
        measured = pair.seconds if has_rounds else (None, None)
        medians = [side[0].benchmarks[key].median for side in (baseline, candidate)]
        seconds = [value if value is not None else median for value, median in zip(measured, medians, strict=True)]
        speed = speeds[key] if has_rounds else _speed_of_medians(seconds)
        rows.append(
            BenchmarkRow(
                benchmark=clean(bench.name if names.count(bench.name) == 1 else bench.full_name),
                full_name=clean(bench.full_name),
                rounds=(_count(baseline, key), _count(candidate, key)),
                before=seconds[0],
                after=seconds[1],
                speed=speed,
            )
        )
    return BenchmarkComparison(
        sides=(_name(baseline), _name(candidate)),
        rows=tuple(rows),
        header=tuple(_header(baseline, candidate)),
        warnings=tuple(warnings),
        notes=tuple(notes),
        caption=tuple(_caption(rows, len(baseline), len(candidate))),
    )


def _speed_of_medians(seconds: Sequence[float]) -> Speed:
    ratio = seconds[1] / seconds[0] if seconds[0] and seconds[1] else None
    return Speed(kind="inconclusive", reason="no rounds were saved", ratio=ratio)


def _paired(baseline: Sequence[Report], candidate: Sequence[Report]) -> tuple[dict[str, Benchmark], list[str]]:
    """Return the benchmarks that every report has, and notes on the others."""
    reports = [*baseline, *candidate]
    benchmarks = {key: bench for report in reports for key, bench in report.benchmarks.items()}
    common = {key: bench for key, bench in benchmarks.items() if all(key in report.benchmarks for report in reports)}
    notes = []
    unmatched = {key: bench for key, bench in benchmarks.items() if key not in common}
    for side, opposite, word in ((baseline, candidate, "before"), (candidate, baseline, "after")):
        one_sided = [
            clean(bench.full_name)
            for key, bench in unmatched.items()
            if not any(key in report.benchmarks for report in opposite)
        ]
        if one_sided:
            notes.append(f"Only {word}, in {_name(side)}: {join_names(one_sided, MAX_NAMES)}")
    for key, bench in unmatched.items():
        missing = [report.name for report in reports if key not in report.benchmarks]
        if all(any(key in report.benchmarks for report in side) for side in (baseline, candidate)):
            notes.append(f"Not in {join_names(map(clean, missing), MAX_NAMES)}: {clean(bench.full_name)}")
    if not common:
        message = ". ".join((f"{_name(baseline)} and {_name(candidate)} have no benchmark in common", *notes))
        raise NotComparableError(Problem(code="nothing-in-common", message=message, valid="two runs of one suite"))
    return common, notes


def _code_warnings(baseline: Sequence[Report], candidate: Sequence[Report]) -> Iterator[str]:
    """Warn of different code within a side, and of the same commit on both sides."""
    codes = [{report.code for report in side} for side in (baseline, candidate)]
    for side, side_codes, word in ((baseline, codes[0], "before"), (candidate, codes[1], "after")):
        if len(side_codes) > 1:
            yield f"The {len(side)} reports {word} have different code: {join_names(sorted(side_codes), MAX_NAMES)}"
    if codes[0] == codes[1] and not any(report.commit.get("dirty") for report in (*baseline, *candidate)):
        has_commit = next(iter(codes[0])) != "of no commit"
        if has_commit:
            commits = join_names(sorted(codes[0]), MAX_NAMES)
            yield f"Both sides are {commits}: differences below are noise, or come from the environment"


def _header(baseline: Sequence[Report], candidate: Sequence[Report]) -> Iterator[str]:
    for word, side in (("before", baseline), ("after", candidate)):
        for report in side[:MAX_NAMES]:
            yield f"{word + ':':7} {report.label}"
        if len(side) > MAX_NAMES:
            yield f"{word + ':':7} and {len(side) - MAX_NAMES} more"


def _caption(rows: Sequence[BenchmarkRow], baseline_runs: int, candidate_runs: int) -> Iterator[str]:
    rows_with_interval = [row for row in rows if row.speed.low is not None]
    if not rows_with_interval:
        yield "Without saved rounds there is no interval and no verdict: use (`--benchmark-save-data`)."
        return
    levels = [percent(level) for level in sorted({row.speed.level or 0.0 for row in rows_with_interval})]
    level_text = levels[0] if len(levels) == 1 else f"{levels[0]} to {levels[-1]}"
    yield (
        f"All verdicts together hold with 95 % confidence: Student-t on logarithms, Holm over "
        f"{plural(len(rows_with_interval), 'benchmark')}; the intervals have {level_text} confidence."
    )
    if min(baseline_runs, candidate_runs) >= RUNS:
        yield f"A run counts once, by its median ({baseline_runs} before, {candidate_runs} after)."
    else:
        counts = span([count for row in rows_with_interval for count in row.rounds])
        yield f"n = {counts} rounds a side, in up to {BATCHES} batches in time order, each by its median."
    if min(baseline_runs, candidate_runs) >= RUNS:
        yield "A/A: the difference between runs of the same code; a smaller difference is never claimed."
        return
    yield "A/A: the difference between the halves of a side, of the same code; a smaller difference is never claimed."
    factor = "twice the variance" if min(baseline_runs, candidate_runs) == 1 else "the variance"
    yield (
        f"The variation between runs is estimated, not measured: the intervals allow for {factor} of a run's batches, "
        "and include the ratio of the fastest rounds. "
        f"Two folders of {RUNS} runs a side, run in turn, measure it, and detect smaller differences."
    )


def _cells(row: BenchmarkRow) -> list[Cell]:
    speed = row.speed
    ratio = NO_VALUE if speed.ratio is None else f"{speed.ratio:.3g}" if speed.ratio >= 10 else f"{speed.ratio:.3f}"
    if speed.low is not None and speed.high is not None:
        ratio += f" {format_interval(speed.low, speed.high)}"
    noise = NO_VALUE if speed.noise is None else format_noise(speed.noise)
    return row_cells([row.benchmark, _seconds(row.before), _seconds(row.after), ratio, noise, row.verdict], speed.kind)


def format_interval(low: float, high: float) -> str:
    """Return an interval of ratios; rounds do not resolve ratios beyond a factor of 100."""
    return f"[{low:.3f}, {high:.3f}]" if low >= 0.01 and high <= 100 else f"[{_end(low)}, {_end(high)}]"


def _end(value: float) -> str:
    return "<0.01" if value < 0.01 else ">100" if value > 100 else f"{value:.3f}"


def format_noise(noise: float) -> str:
    """`±5 %` or `x3`: the deviation of the same code from itself."""
    return f"x{noise:.2g}" if noise >= 2 else f"±{100 * (noise - 1):.2g} %"


def _seconds(value: float | None) -> str:
    if value is None:
        return NO_VALUE
    for unit, size in (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6)):
        if value >= size:
            return f"{value / size:.3g} {unit}"
    return f"{value / 1e-9:.3g} ns"


def _record(row: BenchmarkRow) -> dict[str, Any]:
    plain = row.to_json()
    counts = plain.pop("n")
    return {**plain, "rounds_before": counts[0], "rounds_after": counts[1]}


def _rounds(side: Sequence[Report], key: str) -> list[tuple[float, ...]]:
    return [report.benchmarks[key].rounds for report in side]


def _count(side: Sequence[Report], key: str) -> int:
    return sum(report.benchmarks[key].count for report in side)


def _name(side: Sequence[Report]) -> str:
    return clean(side[0].name) if len(side) == 1 else clean(str(Path(side[0].name).parent))
