"""Comparison of two sets of trials, such as two commits of a study or two stores, paired by spec and seed."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, final

from paribus.analysis.costs import costs, machine_key
from paribus.analysis.formatting import MAX_DECIMALS, clean, format_number, percent, plural, span
from paribus.analysis.grid import Cell, Column, Grid, format_count, format_difference, row_cells
from paribus.analysis.load_runs import Key, TrialSet
from paribus.analysis.select_trials import CODE_DIGITS
from paribus.analysis.table import Row, replace_infinite, verdict_fields
from paribus.analysis.trials import TrialEntry
from paribus.analysis.verdicts import Better, PairedDifferences, Verdict, decide
from paribus.errors import NotComparableError, Problem, SpecError, closest_match, join_names
from paribus.planning.comparability import CONDITIONS
from paribus.studies.designs import BASELINE

Pair = tuple[TrialEntry, TrialEntry]
MAX_CHANGES: Final = 6
# The specs of two single trials may differ, so conditions that only specs show are not checked.
_CODES: Final = (
    "other-corpus",
    "other-tokenizer",
    "other-validation",
    "other-steps",
    "other-versions",
    "other-machine",
)
_VALID: Final = "trials of one corpus, one budget and one machine, or --across-machines, which warns above everything"


def environment_changes(pairs: Sequence[Pair]) -> Iterator[str]:
    """Yield a line each for code, data, versions and machine: what changed, or that it is the same."""
    yield f"code:     {_code(pairs)}"
    kinds: tuple[tuple[str, Callable[[TrialEntry], Any]], ...] = (
        ("data", _data),
        ("versions", _versions),
        ("machine", lambda entry: " ".join(value for _, value in machine_key(entry)) or "unknown"),
    )
    for name, read in kinds:
        baseline, candidate = (list(dict.fromkeys(clean(read(pair[side])) for pair in pairs)) for side in (0, 1))
        if baseline == candidate:
            text = f"the same ({join_names(baseline, MAX_CHANGES)})"
        elif name == "versions" and len(baseline) == len(candidate) == 1:
            text = _moved(pairs[0])
        else:
            text = f"{join_names(baseline, MAX_CHANGES)} → {join_names(candidate, MAX_CHANGES)}"
        yield f"{name + ':':9} {text}"


def _code(pairs: Sequence[Pair]) -> str:
    """Describe changes of code by variant: a record has one hash of the code of all components of its trial."""
    moved: dict[str, None] = {}
    hashes = [[str(entry.trial.get("code") or "unknown")[:CODE_DIGITS] for entry in pair] for pair in pairs]
    for (_, candidate), (old, new) in zip(pairs, hashes, strict=True):
        if old != new:
            moved[f"{clean(candidate.variant)} {old} → {new}"] = None
    if not moved:
        return f"the same ({join_names(dict.fromkeys(old for old, _ in hashes), MAX_CHANGES)})"
    variants = {entry.variant for _, entry in pairs}
    some = f"; the same for {len(variants) - len(moved)} more" if len(variants) > len(moved) else ""
    return f"{join_names(moved, MAX_CHANGES)}{some}"


def _data(entry: TrialEntry) -> str:
    data = entry.result["data"]
    return f"corpus {str(data['corpus'])[:CODE_DIGITS]}, tokenizer {str(data['tokenizer'])[:CODE_DIGITS]}"


def _versions(entry: TrialEntry) -> str:
    return ", ".join(f"{name} {version}" for name, version in (entry.provenance.get("versions") or {}).items())


def _moved(pair: Pair) -> str:
    """Describe the versions that differ between the trials of a pair."""
    baseline, candidate = (entry.provenance.get("versions") or {} for entry in pair)
    moved = [
        f"{clean(name)} {clean(str(baseline.get(name, 'none')))} → {clean(str(candidate.get(name, 'none')))}"
        for name in dict.fromkeys([*baseline, *candidate])
        if baseline.get(name) != candidate.get(name)
    ]
    return join_names(moved, MAX_CHANGES)


def check_same_conditions(pairs: Sequence[Pair], *, across: bool) -> list[str]:
    """Raise a `NotComparableError` where pairs differ in data, budget or machine; return a warning if `across`."""
    problems = [
        Problem(
            code=condition.code,
            message=f"before and after differ in {condition.subject}: {join_names(lines, MAX_CHANGES)}",
            valid=_VALID,
        )
        for condition in CONDITIONS
        if condition.code in _CODES and condition.recorded is not None and condition.metrics != "per byte"
        if (lines := list(_unlike(pairs, condition.recorded)))
    ]
    if problems and not across:
        raise NotComparableError(*problems)
    summary = "; ".join(problem.message for problem in problems)
    return [f"ACROSS MACHINES: {summary}: no difference below is known to be the code's"] if problems else []


def _unlike(pairs: Sequence[Pair], read: Callable[[TrialEntry], Any]) -> Iterator[str]:
    listed_pairs = []
    for pair in pairs:
        baseline, candidate = map(read, pair)
        if baseline != candidate and (baseline, candidate) not in listed_pairs:
            listed_pairs.append((baseline, candidate))
            yield f"{_short(baseline)} against {_short(candidate)}"


def _short(value: Any) -> str:
    """Return a value with the first digits of each digest."""
    parts = value if isinstance(value, list) else [value]
    return ", ".join(clean(str(part))[:CODE_DIGITS] for part in parts)


LOWER: Final = ("loss", "perplexity", "bits-per-byte")  # of which less is better, as everybody knows
MOST: Final = 8
IDENTICAL: Final = "the same, to the bit"


@final
@dataclass(frozen=True, kw_only=True)
class RunComparison:
    """Differences of each variant between two sets of trials; `rows` hold after - before."""

    metric: str
    better: Better
    header: tuple[str, ...]
    rows: tuple[Row, ...]
    baseline_means: Mapping[str, float | None]  # means, by variant
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
        heads += [Column("after", align_right=True), Column("after - before"), Column("verdict", wrap="verdict")]
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
    baseline: TrialSet, candidate: TrialSet, *, metric: str = "", elsewhere: bool = False
) -> RunComparison:
    """Return the differences between two sets; a `NotComparableError` where no trials match, or conditions differ."""
    pairs = {key: (baseline.trials[key], candidate.trials[key]) for key in baseline.trials if key in candidate.trials}
    notes = [
        *baseline.notes,
        *candidate.notes,
        *_alone(baseline, candidate, "before"),
        *_alone(candidate, baseline, "after"),
    ]
    if not pairs:
        message = ". ".join((f"no trial of {baseline.name} has the spec and seed of one of {candidate.name}", *notes))
        raise NotComparableError(Problem(code="nothing-in-common", message=message, valid="two runs of one study"))
    metric, better = select_metric(list(pairs.values()), metric)
    measured = {key: pair for key, pair in pairs.items() if any(metric in e.result["metrics"] for e in pair)}
    warnings = check_same_conditions(list(measured.values()), across=elsewhere)
    groups: dict[str, list[Pair]] = {}
    for (spec, _), pair in sorted(measured.items(), key=_order):
        groups.setdefault(spec, []).append(pair)
    names = _names(groups)
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
        warnings=tuple(warnings),
        notes=tuple(notes),
        caption=tuple(_caption(rows, list(measured.values()))),
    )


def select_metric(pairs: Sequence[Pair], requested: str) -> tuple[str, Better]:
    """Return the requested metric (`NAME`, or `NAME:higher`), or else the loss that most trials have."""
    measured = Counter(name for pair in pairs for entry in pair for name in entry.result["metrics"])
    if not requested:
        losses = Counter({name: count for name, count in measured.items() if name.endswith("/loss")})
        if not losses:
            valid = join_names(measured) or "none was measured"
            raise NotComparableError(
                Problem(code="no-metric", path="--metric", message="there is no loss", valid=valid)
            )
        return losses.most_common(1)[0][0], "lower"
    name, _, better = requested.partition(":")
    if name not in measured:
        message, near = f"no trial measured `{name}`", closest_match(name, measured)
        raise SpecError(
            Problem(code="no-metric", path="--metric", message=message, valid=join_names(measured), suggestion=near)
        )
    if not better and name.rpartition("/")[2] in LOWER:
        better = "lower"
    if better not in ("lower", "higher"):
        message = f"which way of `{name}` is better?"
        valid = f"`{name}:lower`, `{name}:higher`"
        raise SpecError(Problem(code="no-metric", path="--metric", message=message, valid=valid))
    return name, "higher" if better == "higher" else "lower"


def _order(item: tuple[Key, Pair]) -> tuple[bool, str, int]:
    """Sort the baseline first, then by name, then by seed."""
    (_, seed), (_, candidate) = item
    return candidate.variant != BASELINE, _called(candidate), seed


def _names(groups: Mapping[str, Sequence[Pair]]) -> dict[str, str]:
    """Return the current names of variants; two with one name get a digest of their specs."""
    called = {spec: _called(variant_pairs[0][1]) for spec, variant_pairs in groups.items()}
    twice = {name for name, count in Counter(called.values()).items() if count > 1}
    return {spec: f"{name} ({spec[:6]})" if name in twice else name for spec, name in called.items()}


def _called(entry: TrialEntry) -> str:
    stage = str(entry.trial.get("stage") or "")
    return clean(f"{entry.variant}, {stage}" if stage else entry.variant)


def _paired(variant_pairs: Sequence[Pair], metric: str) -> PairedDifferences:
    values = [(one, variant) for one, variant in ((a.value(metric), b.value(metric)) for a, b in variant_pairs)]
    return PairedDifferences(
        differences=tuple(b - a for a, b in values if a is not None and b is not None),
        diverged=sum(pair[1].diverged(metric) for pair in variant_pairs),
        baseline_diverged=sum(pair[0].diverged(metric) for pair in variant_pairs),
        planned=len(variant_pairs),
    )


def _row(name: str, variant_pairs: Sequence[Pair], verdict: Verdict, metric: str) -> Row:
    entries = [pair[1] for pair in variant_pairs]
    same = all(_digest(pair[0]) == _digest(pair[1]) != "" for pair in variant_pairs)
    fields = verdict_fields(verdict) | ({"verdict": IDENTICAL, "low": 0.0, "high": 0.0} if same else {})
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
    return str((entry.result.get("digests") or {}).get("parameters") or "")


def _mean(values: Sequence[float | None]) -> float | None:
    present = [value for value in values if value is not None]
    return math.fsum(present) / len(present) if present else None


def _alone(side: TrialSet, opposite: TrialSet, word: str) -> Iterator[str]:
    alone: dict[str, list[int]] = {}
    for key, entry in side.trials.items():
        if key not in opposite.trials:
            alone.setdefault(_called(entry), []).append(entry.seed)
    if alone:
        texts = (f"{name} (seed {join_names(sorted(seeds), MOST)})" for name, seeds in alone.items())
        yield f"Only {word}: {join_names(texts, MOST)}"


def _caption(rows: Sequence[Row], pairs: Sequence[Pair]) -> Iterator[str]:
    steps = span([entry.result["steps"] for pair in pairs for entry in pair if entry.done])
    yield "A difference is after - before, of the same spec and seed."
    levels = sorted({row.level for row in rows if row.level is not None})
    level_text = (
        f"; the intervals are of {' to '.join(dict.fromkeys(map(percent, (levels[0], levels[-1]))))}" if levels else ""
    )
    yield (
        "All verdicts together hold with 95 % confidence: Student-t on paired differences, "
        f"Holm over {plural(len(rows), 'variant')}{level_text}."
    )
    yield f"n = {span([row.n for row in rows])} seeds, {steps} steps, on this corpus and its validation split."


def _record(table: RunComparison, row: Row) -> dict[str, Any]:
    plain = {key: value for key, value in row.to_json(table.metric).items() if key not in ("learned",)}
    return replace_infinite({**plain, "before": table.baseline_means[row.variant]})
