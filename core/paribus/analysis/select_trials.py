"""Selection of the trials of a table, with notes on the other trials, and the check that the trials compare."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Final, NamedTuple, final

from paribus.analysis.formatting import MAX_NAMES, plural
from paribus.analysis.trials import ComparisonSpec, TrialEntry
from paribus.errors import NotComparableError, Problem, join_names
from paribus.planning.comparability import conditions, differing_names
from paribus.planning.last_evaluations import evaluations, too_few_evaluations
from paribus.planning.older_records import DATA
from paribus.specs.diff import touches

MAX_FAILURES: Final = 24  # failed or excluded trials that get a line each
FAILED_STATES: Final = ("failed", "out-of-memory", "timeout")

TrialsByVariant = Mapping[str, Mapping[int, TrialEntry]]  # variant -> seed -> trial


@final
class Selection(NamedTuple):
    """One trial for each variant and seed that has any, and a note on each deviation from the plan."""

    trials: TrialsByVariant
    notes: tuple[str, ...]


def select(entries: Iterable[TrialEntry], comparison: ComparisonSpec) -> Selection:
    """Select a trial for each variant and seed, without stale records; notes name those without a replacement."""
    planned: list[TrialEntry] = []
    unplanned_count = 0
    for entry in entries:
        if entry.variant in comparison.variants and entry.seed in comparison.seeds:
            planned.append(entry)
        else:
            unplanned_count += 1
    trials: dict[str, dict[int, TrialEntry]] = {name: {} for name in comparison.variants}
    for entry in sorted((entry for entry in planned if not entry.changed), key=_rank):
        trials[entry.variant].setdefault(entry.seed, entry)
    selected = [entry for variant_trials in trials.values() for entry in variant_trials.values()]
    recorded = {(entry.variant, entry.seed) for entry in selected if entry.record is not None}
    skipped = [entry for entry in planned if entry.changed and (entry.variant, entry.seed) not in recorded]
    notes = (
        *_excluded_notes(comparison.excluded),
        *_skipped_notes(skipped, unplanned_count),
        *_unfinished_notes(selected),
        *_failure_notes(selected),
    )
    return Selection(trials, notes)


def _rank(entry: TrialEntry) -> tuple[bool, float]:
    """Return a sort key: trials with a record first, the latest of them first."""
    return entry.record is None, -float(entry.provenance.get("ended") or 0)


def _skipped_notes(stale: Sequence[TrialEntry], unplanned_count: int) -> Iterator[str]:
    entries_by_changes: dict[tuple[str, ...], list[TrialEntry]] = {}
    for entry in stale:
        entries_by_changes.setdefault(entry.changed, []).append(entry)
    for changed, entries in entries_by_changes.items():
        advice = "" if DATA in changed else "; `paribus verify` tells whether this code computes the same"
        yield f"Skipped: {_count_text(entries)}, because of changes since: {join_names(changed, MAX_NAMES)}{advice}"
    if unplanned_count:
        yield f"Skipped: {plural(unplanned_count, 'trial')} of variants or seeds that the study no longer has"


def _excluded_notes(cells: Sequence[tuple[str, str]]) -> Iterator[str]:
    for name, reason in cells[:MAX_FAILURES]:
        yield f"Excluded: {name}: {reason}"
    if len(cells) > MAX_FAILURES:
        yield f"{len(cells) - MAX_FAILURES} more excluded: `paribus check` lists them"


def _unfinished_notes(selected: Sequence[TrialEntry]) -> Iterator[str]:
    states = Counter(entry.state for entry in selected if entry.record is None and entry.state not in FAILED_STATES)
    if states:
        yield "Not finished: " + join_names(f"{count} {state}" for state, count in sorted(states.items()))


def _failure_notes(selected: Sequence[TrialEntry]) -> Iterator[str]:
    """Yield why trials failed, each reason once."""
    groups: dict[tuple[str, str], list[TrialEntry]] = {}
    for entry in selected:
        if entry.record is None and entry.state in FAILED_STATES:
            reason = str((entry.failure or {}).get("reason") or "no reason is known").partition("\n")[0]
            groups.setdefault((entry.state, reason), []).append(entry)
    for (state, reason), (first, *others) in [*groups.items()][:MAX_FAILURES]:
        count = f" and {len(others)} more" if others else ""
        yield f"{first.variant} seed {first.seed}{count}: {state}: {reason}"
    if len(groups) > MAX_FAILURES:
        yield f"{sum(map(len, [*groups.values()][MAX_FAILURES:]))} more failed"


def _count_text(entries: Sequence[TrialEntry]) -> str:
    """`3 records (mqa: seeds 0, 1, 2)`."""
    seeds_by_variant: dict[str, list[int]] = {}
    for entry in entries:
        seeds_by_variant.setdefault(entry.variant, []).append(entry.seed)
    texts = (f"{name}: seed {join_names(sorted(seeds), MAX_NAMES)}" for name, seeds in seeds_by_variant.items())
    return f"{plural(len(entries), 'record')} ({'; '.join(texts)})"


def check_records_comparable(trials: TrialsByVariant, comparison: ComparisonSpec, notes: Sequence[str] = ()) -> None:
    """Raise a `NotComparableError` with all reasons if no variant has trials that belong in the baseline's table.

    `notes` on the selection are part of the error if no record remains.
    """
    recorded = [
        entry for variant_trials in trials.values() for entry in variant_trials.values() if entry.record is not None
    ]
    if not recorded:
        location = f" in {comparison.store}" if comparison.store else ""
        message = ". ".join((f"the study `{comparison.study}` has no record to compare{location}", *notes))
        raise NotComparableError(Problem(code="no-records", message=message, valid="`paribus run`, and then compare"))
    done = _done_entries(trials)
    differences = [*_differences(done, comparison)]
    differing = {name for difference in differences for name in difference.names}
    others = {name for name, entries in done.items() if entries and name != comparison.baseline}
    if differences and (comparison.baseline in differing or others <= differing):
        raise NotComparableError(*(difference.problem for difference in differences))


def incomparable_reason(trials: TrialsByVariant, name: str, comparison: ComparisonSpec) -> str:
    """Return why the finished trials of a variant do not belong in the baseline's table, or an empty string."""
    done = _done_entries({side: trials[side] for side in (comparison.baseline, name)})
    return next((difference.reason for difference in _differences(done, comparison) if name in difference.names), "")


def _done_entries(trials: TrialsByVariant) -> Mapping[str, Sequence[TrialEntry]]:
    return {name: [entry for entry in variant_trials.values() if entry.done] for name, variant_trials in trials.items()}


@final
class _Difference(NamedTuple):
    """Variants that cannot be compared with the baseline, with the words of a withheld verdict and of an error."""

    names: Sequence[str]
    reason: str
    problem: Problem


def _differences(done: Mapping[str, Sequence[TrialEntry]], comparison: ComparisonSpec) -> Iterator[_Difference]:
    """Yield each property in which finished trials differ and must not; of an average, in any of its tasks."""
    first = next((entry for entries in done.values() for entry in entries), None)
    for index, task in enumerate(first.tasks if first is not None else ()):
        of_task = {name: [entry.tasks[index].entry for entry in entries] for name, entries in done.items()}
        yield from _differences(of_task, replace(comparison, metric=task.metric, averaged=()))
    if first is not None and first.tasks:
        return
    yield from _condition_differences(done, comparison)
    yield from _metric_differences(done, comparison.metric, comparison.last)


def _condition_differences(
    done: Mapping[str, Sequence[TrialEntry]], comparison: ComparisonSpec
) -> Iterator[_Difference]:
    """Compare all trials with the first finished one, of the baseline if possible."""
    order = sorted(done, key=lambda name: name != comparison.baseline)
    reference = next((entry for name in order for entry in done[name]), None)
    if reference is None:
        return
    for condition in conditions(reference):
        if condition.recorded is None or condition.withholds != "table" or not condition.applies_to(comparison.metric):
            continue
        names = differing_names(
            condition.recorded,
            reference,
            {
                name: [
                    entry
                    for entry in entries
                    if not touches({**entry.overrides, **entry.budget_overrides}, condition.varied_by)
                ]
                for name, entries in done.items()
            },
        )
        if names:
            entries = (next(iter(done[names[0]])), reference)
            describe = condition.describe
            details = "" if describe is None else ", ".join(dict.fromkeys(describe(entry) for entry in entries))
            problem = condition.problem(names, reference.variant, details=details)
            yield _Difference(names, f"differs from {reference.variant} in {condition.subject}", problem)


def _metric_differences(done: Mapping[str, Sequence[TrialEntry]], metric: str, last: int) -> Iterator[_Difference]:
    """Check that every finished trial has the metric, measured at its last step, and as often as its mean needs."""
    lacking = {
        name: counts
        for name, entries in done.items()
        if (counts := [_count(entry, metric) for entry in entries if metric not in entry.result["metrics"]])
    }
    few = {name: min(counts) for name, counts in lacking.items() if last > 1 and min(counts)}
    if few:
        names = [*few]
        text = (
            "each trial"
            if names == [name for name, entries in done.items() if entries]
            else join_names(names, MAX_NAMES)
        )
        problem = too_few_evaluations(text, metric, last, min(few.values()))
        yield _Difference(names, f"fewer than {last} evaluations of {metric}", problem)
    missing = [name for name in lacking if name not in few]
    if missing:
        measured = dict.fromkeys(
            key for entries in done.values() for entry in entries for key in entry.result["metrics"]
        )
        problem = Problem(
            code="unknown-metric",
            path=_path(missing),
            message=f"{join_names(missing, MAX_NAMES)} did not measure `{metric}`",
            valid=join_names(measured) or "none was measured",
        )
        yield _Difference(missing, f"did not measure {metric}", problem)
    early = [name for name, entries in done.items() if any(_is_early(entry) for entry in entries)]
    if early:
        message = f"{join_names(early, MAX_NAMES)} was measured before its last step, where others were not"
        problem = Problem(
            code="no-final-metric", path=_path(early), message=message, valid="the metric of the last step, for all"
        )
        yield _Difference(early, "measured before its last step", problem)


def _count(entry: TrialEntry, metric: str) -> int:
    assert entry.record is not None, "the trial has finished"
    return len(evaluations(entry.record, metric))


def _is_early(entry: TrialEntry) -> bool:
    """Return whether the metrics are of a step before the last, which may have been selected as the best."""
    curve = entry.result.get("curve") or []
    return bool(curve) and curve[-1]["step"] != entry.result["steps"]


def _path(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else ""
