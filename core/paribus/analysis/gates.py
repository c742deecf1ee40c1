"""Gates for a pipeline, `slower:5%` or `worse:0.01`, which trip if a whole interval lies beyond the limit."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import Final, Literal, NamedTuple, Protocol, final

from paribus.analysis.compare_benchmarks import BenchmarkComparison, BenchmarkRow, format_interval, format_noise
from paribus.analysis.costs import Cost
from paribus.analysis.formatting import clean
from paribus.analysis.p_values import interval, summarise
from paribus.analysis.table import Row, Table
from paribus.analysis.verdicts import Better
from paribus.errors import NotComparableError, Problem, SpecError, closest_match

GateKind = Literal["slower", "worse"]

VALID: Final = "`slower:5%` (time, so many percent more) or `worse:0.01` (the metric, by so much)"
SHAPE: Final = re.compile(r"\s*([\w-]+)\s*[:=]\s*([^%]*?)\s*(%?)\s*")


class VerdictTable(Protocol):
    """A table of verdicts on any kind of comparison."""

    @property
    def rows(self) -> Sequence[Row]:
        """The rows that are compared with a reference."""

    @property
    def better(self) -> Better:
        """The direction in which the metric is better."""


@final
class Gate(NamedTuple):
    """A limit that must not be exceeded."""

    kind: GateKind
    limit: float  # 0.05 for `slower:5%`
    text: str


@final
class GateResult(NamedTuple):
    """The result of a gate: rows beyond its limit, and rows that are too uncertain."""

    gate: Gate
    tripped: tuple[str, ...]
    unclear: tuple[str, ...]

    @property
    def lines(self) -> list[str]:
        """One line for each row that tripped or is unclear, or one line if the gate held."""
        lines = [f"gate {self.gate.text} tripped: {row}" for row in self.tripped]
        lines += [f"gate {self.gate.text} inconclusive: {row}" for row in self.unclear]
        return lines or [f"gate {self.gate.text} held"]

    def to_json(self) -> dict[str, object]:
        return {"gate": self.gate.text, "tripped": list(self.tripped), "inconclusive": list(self.unclear)}


def parse_gates(texts: Sequence[str]) -> list[Gate]:
    """Parse the gates of `--fail-if`; all errors are reported at once."""
    gates: list[Gate] = []
    problems: list[Problem] = []
    for text in texts:
        try:
            gates.append(_parse_gate(text))
        except SpecError as error:
            problems += error.problems
    if problems:
        raise SpecError(*problems)
    return gates


def _parse_gate(text: str) -> Gate:
    match = SHAPE.fullmatch(text)
    if match is None:
        raise _error(f"expected a gate, got `{text}`", VALID)
    kind, number, percent = match.groups()
    if kind not in ("slower", "worse"):
        raise _error(f"unknown gate `{kind}`", VALID, closest_match(kind, ("slower", "worse")))
    try:
        limit = float(number)
    except ValueError:
        raise _error(f"expected a number as the limit of `{text}`, got `{number}`", VALID) from None
    if not 0 <= limit < math.inf:
        raise _error(f"the limit of `{text}` must be finite and at least 0", VALID)
    if kind == "slower":
        if not percent:
            raise _error(f"expected a percentage as the limit of `{text}`", f"`slower:{number}%`")
        return Gate("slower", limit / 100, f"slower:{limit:g}%")
    if percent:
        raise _error(
            f"expected a number without a percent sign as the limit of `{text}`", "the metric's own unit: `worse:0.01`"
        )
    return Gate("worse", limit, f"worse:{limit:g}")


def _error(message: str, valid: str, suggestion: str = "") -> SpecError:
    return SpecError(
        Problem(code="invalid-fail-condition", path="--fail-if", message=message, valid=valid, suggestion=suggestion)
    )


def check_benchmarks(gates: Sequence[Gate], table: BenchmarkComparison) -> list[GateResult]:
    """Return the result of each gate on benchmarks; a gate that can never trip is an error."""
    metric_gates = [gate for gate in gates if gate.kind == "worse"]
    if metric_gates:
        message = f"`{metric_gates[0].text}` limits a metric, but benchmarks only have times"
        raise SpecError(Problem(code="invalid-fail-condition", path="--fail-if", message=message, valid="`slower:5%`"))
    if gates and all(row.speed.low is None for row in table.rows):
        reasons = "; ".join(dict.fromkeys(row.speed.reason for row in table.rows))
        valid = "reports with rounds: `pytest --benchmark-save-data`, or `--benchmark-json=FILE`"
        message = f"no benchmark has an interval, so no gate can trip ({reasons})"
        raise NotComparableError(Problem(code="missing-interval", path="--fail-if", message=message, valid=valid))
    return [_check_speeds(gate, table.rows) for gate in gates]


def _check_speeds(gate: Gate, rows: Sequence[BenchmarkRow]) -> GateResult:
    tripped, unclear = [], []
    limit = 1 + gate.limit
    for row in rows:
        speed = row.speed
        if speed.low is None or speed.high is None or speed.ratio is None or speed.noise is None:
            unclear.append(f"{row.benchmark}: {speed.reason}")
            continue
        text = f"{row.benchmark}: {speed.ratio:.3f} {format_interval(speed.low, speed.high)}"
        if speed.low > limit and speed.kind == "slower":
            tripped.append(text)
        elif speed.high > limit or speed.noise > limit:
            unclear.append(f"{text}, A/A {format_noise(speed.noise)}")
    return GateResult(gate, tuple(tripped), tuple(unclear))


def check_table(gates: Sequence[Gate], table: VerdictTable, prefix: str = "") -> list[GateResult]:
    """Return the result of each gate on all rows; `prefix` names the table, if there are several."""
    results = [_check_metric(gate, table) if gate.kind == "worse" else _check_throughput(gate, table) for gate in gates]
    if not prefix:
        return results
    return [
        GateResult(result.gate, *(tuple(f"{prefix}: {row}" for row in rows) for rows in result[1:]))
        for result in results
    ]


def check_study(gates: Sequence[Gate], table: Table) -> list[GateResult]:
    """Return the result of each gate on the variants of a study, in all of its settings."""
    names = [clean(setting.setting) if table.other_settings else "" for setting in table.settings]
    results = [check_table(gates, setting, name) for setting, name in zip(table.settings, names, strict=True)]
    return [
        GateResult(
            gate,
            tuple(row for result in gate_results for row in result.tripped),
            tuple(row for result in gate_results for row in result.unclear),
        )
        for gate, gate_results in zip(gates, zip(*results, strict=True), strict=True)
    ]


def _check_metric(gate: Gate, table: VerdictTable) -> GateResult:
    tripped, unclear = [], []
    for row in table.rows:
        name = clean(row.variant)
        if row.low is None or row.high is None or row.kind in ("withheld", "diverged"):
            unclear.append(f"{name}: {clean(row.verdict)}")
            continue
        low, high = (row.low, row.high) if table.better == "lower" else (-row.high, -row.low)
        text = f"{name}: worse by [{low:+.4g}, {high:+.4g}]"
        if low > gate.limit:
            tripped.append(text)
        elif high > gate.limit:
            unclear.append(text)
    return GateResult(gate, tuple(tripped), tuple(unclear))


def _check_throughput(gate: Gate, table: VerdictTable) -> GateResult:
    """Compare the seconds per token of each pair; trials that shared a machine are too uncertain."""
    tripped: list[str] = []
    unclear: list[str] = []
    for row in table.rows:
        name, cost = clean(row.variant), row.costs["tokens_per_second"]
        if cost.low and cost.high:
            _check_timing(gate, name, cost, tripped, unclear)
            continue
        if cost.rough or not cost.pairs:
            reason = "trials shared a machine or ran on several" if cost.rough else "no pair ran on one machine"
            unclear.append(f"{name}: {reason}")
            continue
        logs = summarise([-math.log(ratio) for ratio in cost.pairs])
        bounds = interval(logs, 0.05 / len(table.rows))
        if bounds is None:
            unclear.append(f"{name}: too few seeds: n = {logs.n}")
            continue
        low, high = map(math.exp, bounds)
        text = f"{name}: {math.exp(logs.mean):.3f} times the time [{low:.3f}, {high:.3f}]"
        if low > 1 + gate.limit:
            tripped.append(text)
        elif high > 1 + gate.limit:
            unclear.append(text)
    return GateResult(gate, tuple(tripped), tuple(unclear))


def _check_timing(gate: Gate, name: str, cost: Cost, tripped: list[str], unclear: list[str]) -> None:
    """Compare the ratio of the timing pass after the study; it trips only if its noise is below the limit."""
    assert cost.low is not None and cost.high is not None and cost.ratio is not None  # noqa: PT018  # a timing pass sets all three
    low, high = 1 / cost.high, 1 / cost.low
    text = f"{name}: {1 / cost.ratio:.3f} times the time [{low:.3f}, {high:.3f}]"
    if low > 1 + gate.limit and cost.noise < gate.limit:
        tripped.append(text)
    elif high > 1 + gate.limit:
        noisy = "" if cost.noise < gate.limit else f", but two runs of the baseline differ by {cost.noise:.1%}"
        unclear.append(text + noisy)
