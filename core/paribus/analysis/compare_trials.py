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
        told = [f"{'✓' if self.certificate.ok else '✗'} {self.certificate.text}"] if self.certificate else []
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
            remarks=[("!", self.warnings), ("-", [clean(line) for line in told]), ("·", self.caption)],
            records=[_record(*row) for row in self.rows],
        )


def compare_trials(before: TrialSet, after: TrialSet, *, elsewhere: bool = False) -> TrialDiff:
    """Return the differences between two trials."""
    (one,), (other,) = before.trials.values(), after.trials.values()
    pair = one, other
    warnings = check_same_conditions([pair], across=elsewhere)
    same = spec_key(one.spec) == spec_key(other.spec)
    if any(is_contended(entry) for entry in pair):
        warnings.append("Trials shared the machine (contended): speed is rough")
    return TrialDiff(
        header=(
            f"before:   {_who(one, before)}",
            f"after:    {_who(other, after)}",
            *environment_changes([pair]),
            _spec(pair),
        ),
        rows=tuple(_numbers(pair)),
        certificate=None if same else certify_chain(one, other),
        warnings=tuple(warnings),
        caption=("One seed a side: there is no interval and no verdict. Another seed may turn any of this around.",),
    )


def _who(entry: TrialEntry, side: TrialSet) -> str:
    diverged = "" if entry.done else f", {entry.state}"
    return f"{clean(entry.variant)}, seed {entry.seed}{diverged} ({side.name})"


def _spec(pair: Pair) -> str:
    found = [each for each in differences(pair[0].spec, pair[1].spec) if each.path != "from.trial"]
    told = [f"{each.path} {_value(each.before)} → {_value(each.after)}" for each in found]
    return f"spec:     {clean(join_names(told, MOST)) if told else 'the same'}"


def _value(value: Any) -> str:
    return str(value.get("name", value)) if isinstance(value, dict) else str(value)


def _numbers(pair: Pair) -> Iterator[tuple[str, float | None, float | None]]:
    one, other = pair
    for name in dict.fromkeys([*one.result["metrics"], *other.result["metrics"]]):
        yield name, one.value(name), other.value(name)
    for name, of in {**DECLARED, **MEASURED}.items():
        values = of(one), of(other)
        if values != (None, None):
            yield LABELS[name], *values


def _cells(name: str, before: float | None, after: float | None) -> list[Cell]:
    large = max(abs(before or 0), abs(after or 0)) >= 1000
    decimals = 0 if large else 4
    difference = after - before if before is not None and after is not None else None
    numbers = (format_number(before, decimals), format_number(after, decimals))
    return row_cells([clean(name), *numbers, format_number(difference, decimals, signed=True)])


def _record(name: str, before: float | None, after: float | None) -> dict[str, Any]:
    difference = after - before if before is not None and after is not None else None
    return replace_infinite({"metric": name, "n": 1, "before": before, "after": after, "difference": difference})
