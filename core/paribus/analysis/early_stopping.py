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
        paired = {name: pair_trials(trials, name, question) for name in question.swapped}
        return {name: RowInput(trials=trials, question=question, paired=pairs) for name, pairs in paired.items()}
    inputs = {}
    for name, turn in turns.items():
        look_trials, look_spec = first_seeds(trials, question, turn.n)
        part, row_spec = first_seeds(trials, question, turn.seeds_needed)
        inputs[name] = RowInput(
            trials=part, question=row_spec, paired=pair_trials(look_trials, name, look_spec), verdict=turn.verdict
        )
    return inputs


def variant_states(settings: Sequence[tuple[TrialsByVariant, ComparisonSpec]]) -> list[Mapping[str, VariantState]]:
    """Return the state of each variant of each setting; all of them are one family.

    It depends on the order of the seeds alone, and not on trials that ran beyond a look.
    """

    def see(which: tuple[int, str], n: int) -> LookData:
        (trials, question), name = settings[which[0]], which[1]
        part, look_spec = first_seeds(trials, question, n)
        paired = pair_trials(part, name, look_spec)
        sides = [part[side].get(seed) for side in (question.baseline, name) for seed in look_spec.seeds]
        return LookData(
            paired=paired_differences(part, name, paired, look_spec),
            ended=all(entry is not None and _ended(entry) for entry in sides),
            has_all_records=all(entry is not None and entry.record is not None for entry in sides),
            withheld=bool(paired.reason),
        )

    first_spec = settings[0][1]
    states = decide_sequentially(
        [(place, name) for place, (_, question) in enumerate(settings) for name in question.swapped],
        see,
        looks=first_spec.look_seeds,
        better=first_spec.better,
        margin=first_spec.margin,
        alpha=first_spec.alpha,
    )
    return [{name: states[place, name] for name in question.swapped} for place, (_, question) in enumerate(settings)]


def _ended(entry: TrialEntry) -> bool:
    return entry.record is not None or entry.state in FAILED_STATES


def first_seeds(trials: TrialsByVariant, question: ComparisonSpec, n: int) -> tuple[TrialsByVariant, ComparisonSpec]:
    """Return the trials of the first `n` seeds, and the comparison restricted to them."""
    seeds = question.seeds[:n]
    selected = frozenset(seeds)
    part = {
        name: {seed: entry for seed, entry in variant_trials.items() if seed in selected}
        for name, variant_trials in trials.items()
    }
    return part, replace(question, seeds=seeds)


def seeds_by_variant(turns: Mapping[str, VariantState], question: ComparisonSpec) -> dict[str, int]:
    """Return how many seeds of each variant are needed now; the baseline needs as many as any variant."""
    counts = {name: turn.seeds_needed for name, turn in turns.items()}
    return {question.baseline: max(counts.values(), default=len(question.seeds)), **counts}


def is_needed(entry: TrialEntry, counts: Mapping[str, int], question: ComparisonSpec) -> bool:
    """Return whether a look needs a trial."""
    return entry.seed in question.seeds[: counts.get(entry.variant, len(question.seeds))]


def skipped_notes(counts: Mapping[str, int], question: ComparisonSpec) -> Iterator[str]:
    """Yield a note on the trials that did not have to run."""
    total = len(question.seeds)
    saved = {name: total - count for name, count in counts.items() if count < total}
    if saved:
        trials = plural(sum(saved.values()), "trial")
        texts = join_names((f"{name} after {counts[name]} seeds" for name in saved), MOST)
        yield f"Not needed{' here' if question.setting else ''}: {trials} of {total * len(counts)} ({texts})"
