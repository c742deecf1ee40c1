"""Early stopping of a study from its records: the state of each variant, and the trials that it still needs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import final

from paribus.analysis.formatting import plural
from paribus.analysis.pairing import PairedTrials, pair_trials, paired_differences
from paribus.analysis.select_trials import FAILED_STATES, TrialsByVariant
from paribus.analysis.sequential import LookData, VariantState, decide_sequentially
from paribus.analysis.trials import ComparisonSpec, TrialEntry
from paribus.analysis.verdicts import Verdict
from paribus.errors import join_names

MOST = 8


@final
@dataclass(frozen=True, kw_only=True)
class RowInput:
    """The trials and seeds that one row of a table is made of."""

    trials: TrialsByVariant
    question: ComparisonSpec
    paired: PairedTrials
    verdict: Verdict | None = None  # None where none was told by looks


def row_inputs(
    trials: TrialsByVariant, question: ComparisonSpec, turns: Mapping[str, VariantState]
) -> Mapping[str, RowInput]:
    """Return the input of each variant's row: all seeds, or those of its last look in a study that stops early."""
    if not turns:
        held = {name: pair_trials(trials, name, question) for name in question.swapped}
        return {name: RowInput(trials=trials, question=question, paired=each) for name, each in held.items()}
    found = {}
    for name, turn in turns.items():
        seen, at = first_seeds(trials, question, turn.n)
        part, asked = first_seeds(trials, question, turn.seeds_needed)
        found[name] = RowInput(trials=part, question=asked, paired=pair_trials(seen, name, at), verdict=turn.verdict)
    return found


def variant_states(asked: Sequence[tuple[TrialsByVariant, ComparisonSpec]]) -> list[Mapping[str, VariantState]]:
    """Return the state of each variant of each setting; all of them are one family.

    It depends on the order of the seeds alone, and not on trials that ran beyond a look.
    """

    def see(which: tuple[int, str], n: int) -> LookData:
        (trials, question), name = asked[which[0]], which[1]
        part, at = first_seeds(trials, question, n)
        held = pair_trials(part, name, at)
        sides = [part[side].get(seed) for side in (question.baseline, name) for seed in at.seeds]
        return LookData(
            paired=paired_differences(part, name, held, at),
            ended=all(entry is not None and _ended(entry) for entry in sides),
            has_all_records=all(entry is not None and entry.record is not None for entry in sides),
            withheld=bool(held.reason),
        )

    first = asked[0][1]
    found = decide_sequentially(
        [(place, name) for place, (_, question) in enumerate(asked) for name in question.swapped],
        see,
        looks=first.look_seeds,
        better=first.better,
        margin=first.margin,
        alpha=first.alpha,
    )
    return [{name: found[place, name] for name in question.swapped} for place, (_, question) in enumerate(asked)]


def _ended(entry: TrialEntry) -> bool:
    return entry.record is not None or entry.state in FAILED_STATES


def first_seeds(trials: TrialsByVariant, question: ComparisonSpec, n: int) -> tuple[TrialsByVariant, ComparisonSpec]:
    """Return the trials of the first `n` seeds, and the comparison restricted to them."""
    seeds = question.seeds[:n]
    kept = frozenset(seeds)
    part = {name: {seed: entry for seed, entry in own.items() if seed in kept} for name, own in trials.items()}
    return part, replace(question, seeds=seeds)


def seeds_by_variant(turns: Mapping[str, VariantState], question: ComparisonSpec) -> dict[str, int]:
    """Return how many seeds of each variant are needed now; the baseline needs as many as any variant."""
    found = {name: turn.seeds_needed for name, turn in turns.items()}
    return {question.baseline: max(found.values(), default=len(question.seeds)), **found}


def is_needed(entry: TrialEntry, counts: Mapping[str, int], question: ComparisonSpec) -> bool:
    """Return whether a look needs a trial."""
    return entry.seed in question.seeds[: counts.get(entry.variant, len(question.seeds))]


def skipped_notes(counts: Mapping[str, int], question: ComparisonSpec) -> Iterator[str]:
    """Yield a note on the trials that did not have to run."""
    total = len(question.seeds)
    saved = {name: total - count for name, count in counts.items() if count < total}
    if saved:
        trials = plural(sum(saved.values()), "trial")
        own = join_names((f"{name} after {counts[name]} seeds" for name in saved), MOST)
        yield f"Not needed{' here' if question.setting else ''}: {trials} of {total * len(counts)} ({own})"
