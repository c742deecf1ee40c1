"""Selection of the trials of a table: those that are in it, notes on those that are not, and whether they compare."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple, final

from paribus.analysis.trials import ComparisonSpec, TrialEntry
from paribus.errors import NotComparableError, Problem, join_names
from paribus.planning.comparability import CONDITIONS, differing_names
from paribus.planning.older_records import DATA
from paribus.specs.diff import touches

MAX_CHANGES = 8  # names in a note
MOST = 24  # failures that are told one by one
FAILED_STATES = ("failed", "out-of-memory", "timeout")

TrialsByVariant = Mapping[str, Mapping[int, TrialEntry]]  # variant -> seed -> trial


@final
class Selection(NamedTuple):
    """One trial for each variant and seed that has any, and a line for each departure from the plan."""

    trials: TrialsByVariant
    notes: tuple[str, ...]


def select(entries: Iterable[TrialEntry], comparison: ComparisonSpec) -> Selection:
    """Select a trial for each variant and seed; stale records are left out, and named where nothing replaces them."""
    planned: list[TrialEntry] = []
    foreign = 0
    for entry in entries:
        if entry.variant in comparison.variants and entry.seed in comparison.seeds:
            planned.append(entry)
        else:
            foreign += 1
    trials: dict[str, dict[int, TrialEntry]] = {name: {} for name in comparison.variants}
    for entry in sorted((entry for entry in planned if not entry.changed), key=_rank):
        trials[entry.variant].setdefault(entry.seed, entry)
    chosen = [entry for variant_trials in trials.values() for entry in variant_trials.values()]
    recorded = {(entry.variant, entry.seed) for entry in chosen if entry.record is not None}
    skipped = [entry for entry in planned if entry.changed and (entry.variant, entry.seed) not in recorded]
    notes = (
        *_excluded(comparison.excluded),
        *_skipped(skipped, foreign),
        *_unfinished(chosen),
        *_failures(chosen),
    )
    return Selection(trials, notes)


def _rank(entry: TrialEntry) -> tuple[bool, float]:
    """Sort a record first, then the latest."""
    return entry.record is None, -float(entry.provenance.get("ended") or 0)


def _skipped(stale: Sequence[TrialEntry], foreign: int) -> Iterator[str]:
    by_change: dict[tuple[str, ...], list[TrialEntry]] = {}
    for entry in stale:
        by_change.setdefault(entry.changed, []).append(entry)
    for changed, entries in by_change.items():
        advice = "" if DATA in changed else "; `paribus verify` tells whether this code computes the same"
        yield f"Skipped: {_counted(entries)}, because of changes since: {join_names(changed, MAX_CHANGES)}{advice}"
    if foreign:
        yield f"Skipped: {_plural(foreign, 'trial')} of variants or seeds that the study no longer has"


def _excluded(cells: Sequence[tuple[str, str]]) -> Iterator[str]:
    for name, reason in cells[:MOST]:
        yield f"Excluded: {name}: {reason}"
    if len(cells) > MOST:
        yield f"{len(cells) - MOST} more excluded: `paribus check` lists them"


def _unfinished(chosen: Sequence[TrialEntry]) -> Iterator[str]:
    states = Counter(entry.state for entry in chosen if entry.record is None and entry.state not in FAILED_STATES)
    if states:
        yield "Not finished: " + join_names(f"{count} {state}" for state, count in sorted(states.items()))


def _failures(chosen: Sequence[TrialEntry]) -> Iterator[str]:
    failed = [entry for entry in chosen if entry.record is None and entry.state in FAILED_STATES]
    for entry in failed[:MOST]:
        reason = str((entry.failure or {}).get("reason") or "no reason is known").partition("\n")[0]
        yield f"{entry.variant} seed {entry.seed}: {entry.state}: {reason}"
    if len(failed) > MOST:
        yield f"{len(failed) - MOST} more failed"


def _counted(entries: Sequence[TrialEntry]) -> str:
    """`3 records (mqa: seeds 0, 1, 2)`."""
    seeds: dict[str, list[int]] = {}
    for entry in entries:
        seeds.setdefault(entry.variant, []).append(entry.seed)
    places = "; ".join(f"{name}: seed {join_names(sorted(variant_seeds), 8)}" for name, variant_seeds in seeds.items())
    return f"{_plural(len(entries), 'record')} ({places})"


def _plural(count: int, word: str) -> str:
    return f"{count} {word}" if count == 1 else f"{count} {word}s"


def check_records_comparable(trials: TrialsByVariant, comparison: ComparisonSpec, notes: Sequence[str] = ()) -> None:
    """Raise a `NotComparableError` with every reason why the finished trials do not belong in one table.

    `notes` name the trials that were skipped before: where none remains, they are the reason.
    """
    recorded = [
        entry for variant_trials in trials.values() for entry in variant_trials.values() if entry.record is not None
    ]
    if not recorded:
        place = f" in {comparison.store}" if comparison.store else ""
        message = ". ".join((f"the study `{comparison.study}` has no record to compare{place}", *notes))
        raise NotComparableError(Problem(code="no-records", message=message, valid="`paribus run`, and then compare"))
    done = {name: [entry for entry in variant_trials.values() if entry.done] for name, variant_trials in trials.items()}
    problems = [*_condition_problems(done, comparison), *_metric_problems(done, comparison.metric)]
    if problems:
        raise NotComparableError(*problems)


def _condition_problems(done: Mapping[str, Sequence[TrialEntry]], comparison: ComparisonSpec) -> Iterator[Problem]:
    """Compare all trials with the first finished one, of the baseline where it has any."""
    order = sorted(done, key=lambda name: name != comparison.baseline)
    reference = next((entry for name in order for entry in done[name]), None)
    if reference is None:
        return
    for condition in CONDITIONS:
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
            yield condition.problem(names, reference.variant, details=details)


def _metric_problems(done: Mapping[str, Sequence[TrialEntry]], metric: str) -> Iterator[Problem]:
    """Check that every finished trial has the metric, measured at its last step."""
    missing = [
        name for name, entries in done.items() if any(metric not in entry.result["metrics"] for entry in entries)
    ]
    if missing:
        have = dict.fromkeys(key for entries in done.values() for entry in entries for key in entry.result["metrics"])
        message = f"{join_names(missing, 8)} did not measure `{metric}`"
        yield Problem(
            code="unknown-metric", path=_path(missing), message=message, valid=join_names(have) or "none was measured"
        )
    early = [name for name, entries in done.items() if any(_early(entry) for entry in entries)]
    if early:
        message = f"{join_names(early, 8)} was measured before its last step, where others were not"
        yield Problem(
            code="no-final-metric", path=_path(early), message=message, valid="the metric of the last step, for all"
        )


def _early(entry: TrialEntry) -> bool:
    """Return whether the metrics are from a step before the last, which may have been selected as the best."""
    curve = entry.result.get("curve") or []
    return bool(curve) and curve[-1]["step"] != entry.result["steps"]


def _path(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else ""
