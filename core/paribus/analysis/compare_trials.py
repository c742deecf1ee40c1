"""Comparison of two single trials: differences of their specs and numbers, without any verdict."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final, final

from paribus.analysis.certificates import Certificate, certify_chain
from paribus.analysis.compare_runs import Pair, check_same_conditions, environment_changes
from paribus.analysis.costs import DECLARED, LABELS, MEASURED, is_contended
from paribus.analysis.formatting import clean, format_number
from paribus.analysis.grid import Cell, Column, Grid, row_cells
from paribus.analysis.load_runs import TrialSet, spec_key
from paribus.analysis.table import replace_infinite
from paribus.analysis.trials import TrialEntry
from paribus.errors import join_names
from paribus.specs.diff import differences

MOST: Final = 8


@final
@dataclass(frozen=True, kw_only=True)
class TrialDiff:
    """Differences between two trials."""

    header: tuple[str, ...]
    rows: tuple[tuple[str, float | None, float | None], ...]  # a number's name, before, after
    certificate: Certificate | None  # None: of one spec, there is no swap to certify
    warnings: tuple[str, ...]
    caption: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        return {
            "changed": list(self.header),
            "rows": [_record(*row) for row in self.rows],
            "certificate": self.certificate.to_json() if self.certificate else None,
            "warnings": list(self.warnings),
            "caption": list(self.caption),
        }

    def grid(self) -> Grid:
        lines = [f"{'✓' if self.certificate.ok else '✗'} {self.certificate.text}"] if self.certificate else []
        return Grid(
            title="two trials",
            columns=[
                Column("", wrap="name"),
                Column("before", align_right=True),
                Column("after", align_right=True),
                Column("after - before", align_right=True),
            ],
            rows=[_cells(*row) for row in self.rows],
            header=self.header,
            remarks=[("!", self.warnings), ("-", [clean(line) for line in lines]), ("·", self.caption)],
            records=[_record(*row) for row in self.rows],
        )


def compare_trials(baseline: TrialSet, candidate: TrialSet, *, elsewhere: bool = False) -> TrialDiff:
    """Return the differences between two trials."""
    (one,), (candidate_trial,) = baseline.trials.values(), candidate.trials.values()
    pair = one, candidate_trial
    warnings = check_same_conditions([pair], across=elsewhere)
    same = spec_key(one.spec) == spec_key(candidate_trial.spec)
    if any(is_contended(entry) for entry in pair):
        warnings.append("Trials shared the machine (contended): speed is rough")
    return TrialDiff(
        header=(
            f"before:   {_who(one, baseline)}",
            f"after:    {_who(candidate_trial, candidate)}",
            *environment_changes([pair]),
            _spec(pair),
        ),
        rows=tuple(_numbers(pair)),
        certificate=None if same else certify_chain(one, candidate_trial),
        warnings=tuple(warnings),
        caption=("One seed a side: there is no interval and no verdict. Another seed may turn any of this around.",),
    )


def _who(entry: TrialEntry, side: TrialSet) -> str:
    diverged = "" if entry.done else f", {entry.state}"
    return f"{clean(entry.variant)}, seed {entry.seed}{diverged} ({side.name})"


def _spec(pair: Pair) -> str:
    changes = [change for change in differences(pair[0].spec, pair[1].spec) if change.path != "from.trial"]
    texts = [f"{change.path} {_value(change.before)} → {_value(change.after)}" for change in changes]
    return f"spec:     {clean(join_names(texts, MOST)) if texts else 'the same'}"


def _value(value: Any) -> str:
    return str(value.get("name", value)) if isinstance(value, dict) else str(value)


def _numbers(pair: Pair) -> Iterator[tuple[str, float | None, float | None]]:
    one, candidate = pair
    for name in dict.fromkeys([*one.result["metrics"], *candidate.result["metrics"]]):
        yield name, one.value(name), candidate.value(name)
    for name, read in {**DECLARED, **MEASURED}.items():
        values = read(one), read(candidate)
        if values != (None, None):
            yield LABELS[name], *values


def _cells(name: str, baseline: float | None, candidate: float | None) -> list[Cell]:
    large = max(abs(baseline or 0), abs(candidate or 0)) >= 1000
    decimals = 0 if large else 4
    difference = candidate - baseline if baseline is not None and candidate is not None else None
    numbers = (format_number(baseline, decimals), format_number(candidate, decimals))
    return row_cells([clean(name), *numbers, format_number(difference, decimals, signed=True)])


def _record(name: str, baseline: float | None, candidate: float | None) -> dict[str, Any]:
    difference = candidate - baseline if baseline is not None and candidate is not None else None
    return replace_infinite({"metric": name, "n": 1, "before": baseline, "after": candidate, "difference": difference})
