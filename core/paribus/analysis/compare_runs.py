"""Comparison of two sets of trials, such as two commits of a study or two stores, and of two single trials.

The trials of two sets are paired by spec and seed, and get verdicts. Two single trials get none: only the differences
of their specs and numbers are shown.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, final

from paribus.analysis.captions import assumption, holding, outlier_warning
from paribus.analysis.certificates import Certificate, certify_chain
from paribus.analysis.costs import DECLARED, LABELS, MEASURED, costs, is_contended
from paribus.analysis.formatting import (
    MAX_DECIMALS,
    MAX_NAMES,
    Cell,
    Column,
    Grid,
    clean,
    format_count,
    format_difference,
    format_number,
    percent,
    plural,
    row_cells,
    span,
)
from paribus.analysis.runs import Key, Pair, TrialSet, check_same_conditions, environment_changes, spec_key
from paribus.analysis.table import Row, replace_infinite, verdict_fields
from paribus.analysis.trials import TrialEntry
from paribus.analysis.verdicts import Better, PairedDifferences, Verdict, decide
from paribus.errors import NotComparableError, Problem, SpecError, closest_match, join_names
from paribus.specs.diff import differences
from paribus.specs.program_spec import is_program
from paribus.studies.designs import BASELINE
from paribus.studies.metric_direction import direction, direction_message

IDENTICAL: Final = "the same, to the bit"


@final
@dataclass(frozen=True, kw_only=True)
class RunComparison:
    """Differences of each variant between two sets of trials, after - before."""

    metric: str
    better: Better
    header: tuple[str, ...]
    rows: tuple[Row, ...]
    baseline_means: Mapping[str, float | None]  # variant -> mean of the metric before
    warnings: tuple[str, ...]
    notes: tuple[str, ...]
    caption: tuple[str, ...]

    @property
    def ok(self) -> bool:
        return all(row.kind != "diverged" for row in self.rows)

    def to_json(self) -> dict[str, Any]:
        return {
            "changed": list(self.header),
            "metric": {"name": self.metric, "better": self.better},
            "rows": [_record(self, row) for row in self.rows],
            "caption": list(self.caption),
            "warnings": list(self.warnings),
            "notes": list(self.notes),
        }

    def grid(self) -> Grid:
        heads = [Column("variant", wrap="name"), Column("n", align_right=True), Column("before", align_right=True)]
        heads += [
            Column("after", align_right=True),
            Column("after - before", key="difference"),
            Column("verdict", wrap="verdict"),
        ]
        return Grid(
            title=f"{clean(self.metric)}, {self.better} is better",
            columns=heads,
            rows=[self._cells(row) for row in self.rows],
            header=self.header,
            remarks=[("!", self.warnings), ("-", self.notes), ("·", self.caption)],
            records=[_record(self, row) for row in self.rows],
        )

    def _cells(self, row: Row) -> list[Cell]:
        half = (row.high - row.low) / 2 if row.low is not None and row.high is not None else abs(row.difference or 0)
        decimals = min(MAX_DECIMALS, max(3, 1 - math.floor(math.log10(half)))) if half else 4
        numbers = (format_number(value, decimals) for value in (self.baseline_means[row.variant], row.mean))
        difference = "0" if row.verdict == IDENTICAL else format_difference(row, decimals)
        return row_cells([row.variant, format_count(row), *numbers, difference, row.verdict], row.kind)


def compare_runs(
    baseline: TrialSet, candidate: TrialSet, *, metric: str = "", across: bool = False, strict: bool = False
) -> RunComparison:
    """Return the differences between two sets; a `NotComparableError` if no trials match or conditions differ."""
    pairs = {key: (baseline.trials[key], candidate.trials[key]) for key in baseline.trials if key in candidate.trials}
    notes = [
        *baseline.notes,
        *candidate.notes,
        *_unpaired_notes(baseline, candidate, "before"),
        *_unpaired_notes(candidate, baseline, "after"),
    ]
    if not pairs:
        message = ". ".join((f"no trial of {baseline.name} has the spec and seed of one of {candidate.name}", *notes))
        raise NotComparableError(Problem(code="nothing-in-common", message=message, valid="two runs of one study"))
    metric, better = select_metric(list(pairs.values()), metric)
    measured = {key: pair for key, pair in pairs.items() if any(metric in entry.result["metrics"] for entry in pair)}
    warnings = check_same_conditions(list(measured.values()), across=across, strict=strict)
    groups: dict[str, list[Pair]] = {}
    for (spec, _), pair in sorted(measured.items(), key=_order):
        groups.setdefault(spec, []).append(pair)
    names = _group_names(groups)
    paired = {names[spec]: _paired(variant_pairs, metric) for spec, variant_pairs in groups.items()}
    verdicts = decide(paired, better=better, margin=None)
    rows = [_row(names[spec], variant_pairs, verdicts[names[spec]], metric) for spec, variant_pairs in groups.items()]
    means = {
        names[spec]: _mean([pair[0].value(metric) for pair in variant_pairs]) for spec, variant_pairs in groups.items()
    }
    return RunComparison(
        metric=metric,
        better=better,
        header=(
            f"before:   {baseline.name}",
            f"after:    {candidate.name}",
            *environment_changes(list(measured.values())),
        ),
        rows=tuple(rows),
        baseline_means=means,
        warnings=(*warnings, *outlier_warning(rows)),
        notes=tuple(notes),
        caption=tuple(_caption(rows, list(measured.values()))),
    )


def select_metric(pairs: Sequence[Pair], requested: str) -> tuple[str, Better]:
    """Return the requested metric (`NAME`, or `NAME:higher`), or else the loss that most trials have."""
    measured = Counter(name for pair in pairs for entry in pair for name in entry.result["metrics"])
    if not requested:
        ends = ("/loss", "/bound")
        losses = Counter({name: count for name, count in measured.items() if name.endswith(ends)})
        if not losses:
            valid = join_names(measured) or "none was measured"
            raise NotComparableError(
                Problem(code="unknown-metric", path="--metric", message="there is no loss", valid=valid)
            )
        return losses.most_common(1)[0][0], "lower"
    name, _, better = requested.partition(":")
    if name not in measured:
        message, suggestion = f"no trial measured `{name}`", closest_match(name, measured)
        raise SpecError(
            Problem(
                code="unknown-metric",
                path="--metric",
                message=message,
                valid=join_names(measured),
                suggestion=suggestion,
            )
        )
    known = direction(name, better or None) if better in ("", "lower", "higher") else None
    if known is None:
        message = f"`{better}` is no direction" if better else direction_message(name)
        valid = f"`{name}:lower`, `{name}:higher`"
        raise SpecError(Problem(code="unknown-metric", path="--metric", message=message, valid=valid))
    return name, known


def _order(item: tuple[Key, Pair]) -> tuple[bool, str, int]:
    """Return a sort key: the baseline first, then by name and seed."""
    (_, seed), (_, candidate) = item
    return candidate.variant != BASELINE, _variant_name(candidate), seed


def _group_names(groups: Mapping[str, Sequence[Pair]]) -> dict[str, str]:
    """Return the name of the variant of each group; equal names get a digest of their specs."""
    name_by_spec = {spec: _variant_name(variant_pairs[0][1]) for spec, variant_pairs in groups.items()}
    ambiguous = {name for name, count in Counter(name_by_spec.values()).items() if count > 1}
    return {spec: f"{name} ({spec[:6]})" if name in ambiguous else name for spec, name in name_by_spec.items()}


def _variant_name(entry: TrialEntry) -> str:
    stage = str(entry.trial.get("stage") or "")
    return clean(f"{entry.variant}, {stage}" if stage else entry.variant)


def _paired(variant_pairs: Sequence[Pair], metric: str) -> PairedDifferences:
    differences: dict[int, float] = {}
    for baseline, candidate in variant_pairs:
        baseline_value, candidate_value = baseline.value(metric), candidate.value(metric)
        if baseline_value is not None and candidate_value is not None:
            differences[candidate.seed] = candidate_value - baseline_value
    return PairedDifferences(
        differences=tuple(differences.values()),
        seeds=tuple(differences),
        diverged=sum(pair[1].diverged(metric) for pair in variant_pairs),
        baseline_diverged=sum(pair[0].diverged(metric) for pair in variant_pairs),
        planned=len(variant_pairs),
    )


def _row(name: str, variant_pairs: Sequence[Pair], verdict: Verdict, metric: str) -> Row:
    entries = [pair[1] for pair in variant_pairs]
    is_identical = all(_digest(pair[0]) == _digest(pair[1]) != "" for pair in variant_pairs)
    fields = verdict_fields(verdict) | ({"verdict": IDENTICAL, "low": 0.0, "high": 0.0} if is_identical else {})
    return Row(
        **fields,
        variant=name,
        n=verdict.n,
        planned=len(variant_pairs),
        done=sum(entry.done for entry in entries),
        diverged=sum(entry.diverged(metric) for entry in entries),
        mean=_mean([entry.value(metric) for entry in entries]),
        costs=costs(entries, [pair[0] for pair in variant_pairs], variant_pairs),
    )


def _digest(entry: TrialEntry) -> str:
    """Return the digest of the final parameters, or an empty string if it is unknown."""
    return str((entry.result.get("digests") or {}).get("parameters") or "")


def _mean(values: Sequence[float | None]) -> float | None:
    present = [value for value in values if value is not None]
    return math.fsum(present) / len(present) if present else None


def _unpaired_notes(side: TrialSet, opposite: TrialSet, word: str) -> Iterator[str]:
    """Yield a note on the trials that only one side has."""
    seeds_by_name: dict[str, list[int]] = {}
    for key, entry in side.trials.items():
        if key not in opposite.trials:
            seeds_by_name.setdefault(_variant_name(entry), []).append(entry.seed)
    if seeds_by_name:
        texts = (f"{name} (seed {join_names(sorted(seeds), MAX_NAMES)})" for name, seeds in seeds_by_name.items())
        yield f"Only {word}: {join_names(texts, MAX_NAMES)}"


def _caption(rows: Sequence[Row], pairs: Sequence[Pair]) -> Iterator[str]:
    steps = span([entry.result["steps"] for pair in pairs for entry in pair if entry.done])
    yield "A difference is after - before, of the same spec and seed."
    levels = sorted({row.level for row in rows if row.level is not None})
    level_text = (
        f"; the intervals have {' to '.join(dict.fromkeys(map(percent, (levels[0], levels[-1]))))} confidence, "
        "each by itself"
        if levels
        else ""
    )
    yield (
        f"All verdicts together {holding(rows)} with 95 % confidence: Student-t on paired differences, "
        f"Holm over {plural(len(rows), 'variant')}{level_text}."
    )
    yield from assumption(rows)
    scope = "of this program" if pairs and is_program(pairs[0][0].spec) else "on this corpus and its validation split"
    yield f"n = {span([row.n for row in rows])} seeds, {steps} steps, {scope}."


def _record(table: RunComparison, row: Row) -> dict[str, Any]:
    fields = {key: value for key, value in row.to_json(table.metric).items() if key != "learned"}
    return replace_infinite({**fields, "before": table.baseline_means[row.variant]})


@final
@dataclass(frozen=True, kw_only=True)
class TrialDiff:
    """Differences between two trials."""

    header: tuple[str, ...]
    rows: tuple[tuple[str, float | None, float | None], ...]  # (name of a number, before, after)
    certificate: Certificate | None  # None if both trials have the same spec, and so no swap
    warnings: tuple[str, ...]
    caption: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        return {
            "changed": list(self.header),
            "rows": [_number_record(*row) for row in self.rows],
            "certificate": self.certificate.to_json() if self.certificate else None,
            "warnings": list(self.warnings),
            "caption": list(self.caption),
        }

    def grid(self) -> Grid:
        lines = [f"{self.certificate.mark} {self.certificate.text}"] if self.certificate else []
        return Grid(
            title="two trials",
            columns=[
                Column("", wrap="name", key="metric"),
                Column("before", align_right=True),
                Column("after", align_right=True),
                Column("after - before", align_right=True, key="difference"),
            ],
            rows=[_number_cells(*row) for row in self.rows],
            header=self.header,
            remarks=[("!", self.warnings), ("-", [clean(line) for line in lines]), ("·", self.caption)],
            records=[_number_record(*row) for row in self.rows],
        )


def compare_trials(baseline: TrialSet, candidate: TrialSet, *, across: bool = False, strict: bool = False) -> TrialDiff:
    """Return the differences between two trials."""
    (baseline_trial,), (candidate_trial,) = baseline.trials.values(), candidate.trials.values()
    pair = baseline_trial, candidate_trial
    warnings = check_same_conditions([pair], across=across, strict=strict)
    has_same_spec = spec_key(baseline_trial.spec) == spec_key(candidate_trial.spec)
    if any(is_contended(entry) for entry in pair):
        warnings.append("Trials shared a machine (contended): speed is approximate")
    return TrialDiff(
        header=(
            f"before:   {_trial_label(baseline_trial, baseline)}",
            f"after:    {_trial_label(candidate_trial, candidate)}",
            *environment_changes([pair]),
            _spec_changes(pair),
        ),
        rows=tuple(_numbers(pair)),
        certificate=None if has_same_spec else certify_chain(baseline_trial, candidate_trial),
        warnings=tuple(warnings),
        caption=(
            "One seed on each side: there is no interval and no verdict. Another seed may reverse any difference.",
        ),
    )


def _trial_label(entry: TrialEntry, side: TrialSet) -> str:
    state = "" if entry.done else f", {entry.state}"
    return f"{clean(entry.variant)}, seed {entry.seed}{state} ({side.name})"


def _spec_changes(pair: Pair) -> str:
    changes = [change for change in differences(pair[0].spec, pair[1].spec) if change.path != "from.trial"]
    texts = [f"{change.path} {_short_value(change.before)} → {_short_value(change.after)}" for change in changes]
    return f"spec:     {clean(join_names(texts, MAX_NAMES)) if texts else 'the same'}"


def _short_value(value: Any) -> str:
    return str(value.get("name", value)) if isinstance(value, dict) else str(value)


def _numbers(pair: Pair) -> Iterator[tuple[str, float | None, float | None]]:
    """Yield the name of each metric and cost with its values before and after."""
    baseline, candidate = pair
    for name in dict.fromkeys([*baseline.result["metrics"], *candidate.result["metrics"]]):
        yield name, baseline.value(name), candidate.value(name)
    for name, read in {**DECLARED, **MEASURED}.items():
        values = read(baseline), read(candidate)
        if values != (None, None):
            yield LABELS[name], *values


def _number_cells(name: str, baseline: float | None, candidate: float | None) -> list[Cell]:
    large = max(abs(baseline or 0), abs(candidate or 0)) >= 1000
    decimals = 0 if large else 4
    difference = candidate - baseline if baseline is not None and candidate is not None else None
    numbers = (format_number(baseline, decimals), format_number(candidate, decimals))
    return row_cells([clean(name), *numbers, format_number(difference, decimals, signed=True)])


def _number_record(name: str, baseline: float | None, candidate: float | None) -> dict[str, Any]:
    difference = candidate - baseline if baseline is not None and candidate is not None else None
    return replace_infinite({"metric": name, "n": 1, "before": baseline, "after": candidate, "difference": difference})
