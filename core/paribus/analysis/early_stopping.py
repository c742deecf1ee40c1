"""Early stopping of a study with `stop: when-decided`: group-sequential verdicts, and the trials still needed.

A study has several looks, each after a fixed number of seeds, and each may decide a variant.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Final, final

from paribus.analysis.formatting import plural
from paribus.analysis.pairing import PairedTrials, pair_trials, paired_differences
from paribus.analysis.select_trials import FAILED_STATES, TrialsByVariant
from paribus.analysis.trials import ComparisonSpec, TrialEntry
from paribus.analysis.verdicts import Better, Name, PairedDifferences, Verdict, decide
from paribus.errors import join_names

FINAL_KINDS: Final = ("better", "worse", "equivalent", "diverged")
MAX_NAMES: Final = 8


@final
@dataclass(frozen=True, kw_only=True)
class LookData:
    """The data of a variant and the baseline on the first seeds of a study."""

    paired: PairedDifferences
    ended: bool  # no trial of it is still to come
    has_all_records: bool  # each came to a record: none failed that may be repaired, and change what a look saw
    withheld: bool = False  # the certificate failed, so that nothing will ever be claimed


@final
@dataclass(frozen=True, kw_only=True)
class VariantState:
    """The state of a variant: its verdict at its last look, and the seeds that it needs."""

    verdict: Verdict
    n: int  # seeds of that look; 0 before the first
    seeds_needed: int  # seeds that are needed, of all that the study plans
    decided: bool  # whether its verdict is reached, or there is no further look


See = Callable[[Name, int], LookData]


def alpha_shares(looks: Sequence[int]) -> tuple[float, ...]:
    """Return the share of alpha that each look spends: (n/N)² by n of N seeds (Kim and DeMets 1987)."""
    total = looks[-1]
    return tuple((current**2 - previous**2) / total**2 for previous, current in pairwise((0, *looks)))


def decide_sequentially(
    names: Sequence[Name],
    see: See[Name],
    *,
    looks: Sequence[int],
    better: Better,
    margin: float | None,
    alpha: float = 0.05,
) -> Mapping[Name, VariantState]:
    """One verdict for each variant, at the first look that reaches one; all of them hold with 1 - `alpha` together.

    The looks are numbers of seeds, fixed beforehand, in the study's own order of seeds. At each, `decide` judges the
    variants that are still open, at that look's share of `alpha`. A variant that comes to a verdict stops, with the
    interval at the level that decided; of one that comes to none at the last look the interval is that look's.

    **Why it holds.** Call a variant settled once its interval contains no decision point (0 and, with a margin, ±it).
    Let K variants truly lie at a decision point. At look k, by Student's t, each of their K intervals at level
    alpha_k / K misses its point with probability alpha_k / K; over all looks and all K, one does with at most
    sum(alpha_k) = alpha. That is the union bound: it asks nothing of how looks depend on one another, or variants.
    Else, none of the K is ever settled: before the first of them would be, all K count in the family, so its interval
    is at alpha_k / K or stricter, and contains its point. So the family never has less than K, every interval of the K
    at every look contains its point, and none claims what is not so, wherever it stops. Whether and when another
    variant stops changes the family by no more than settling it, and only the settled leave it: one that stopped as
    `equivalent` with 0 inside its interval, or `diverged`, counts to the end with nothing left to prove.

    The names may be of variants in several settings (matched in several ways, at several scales), all of which look
    after the same numbers of seeds: K is counted over all settings, and the union bound has not asked whether two
    comparisons share a baseline, seeds or whole trials. What one setting's look asks for may run on for another's: a
    verdict is of the seeds of its look, and what ran beyond them is not seen.

    What is said in `decide` of true differences between decision points is so here as well: simulated, not proven. The
    exact joint distribution of the looks would spend less than the union bound does. It would give the last interval
    some percent of its width back, and cost an integral for every family, look and level that nobody could check.

    A look is taken once all trials of its seeds have ended, whatever order they ended in. A variant some of whose
    trials failed without a record is passed over, until the last look: repaired, it would have had the same look twice.
    The mean of what stopped early leans away from 0; its interval allows for it.
    """
    turns = {name: _before(looks) for name in names}
    unsettled = list(names)
    for place, (n, share) in enumerate(zip(looks, alpha_shares(looks), strict=True)):
        look_data = {name: see(name, n) for name in names if not turns[name].decided}
        judged = {name for name, data in look_data.items() if data.ended and (data.has_all_records or n == looks[-1])}
        family = {name: look_data[name].paired if name in judged else _nothing(n) for name in unsettled}
        verdicts = decide(family, better=better, margin=margin, alpha=share * alpha)
        complete = all(data.ended for data in look_data.values())
        following = looks[place + 1] if complete and place + 1 < len(looks) else n
        for name, data in look_data.items():
            over = data.ended and (n == looks[-1] or data.withheld)
            if name in judged:
                turns[name] = _judged(verdicts[name], share, n, following, over=over)
            else:
                turns[name] = _passed(turns[name], following, over=over)
        unsettled = [name for name in unsettled if not _settled(verdicts[name], margin)]
        if not complete or all(turn.decided for turn in turns.values()):
            break
    return turns


def _nothing(n: int) -> PairedDifferences:
    """Return a variant without data, which stays in its family."""
    return PairedDifferences(differences=(), diverged=0, planned=n)


def _before(looks: Sequence[int]) -> VariantState:
    """Return the state of a variant before the first look."""
    nothing = decide({"": _nothing(looks[0])}, better="lower", margin=None)[""]
    return _passed(VariantState(verdict=nothing, n=0, seeds_needed=0, decided=False), looks[0], over=False)


def _judged(verdict: Verdict, share: float, n: int, following: int, *, over: bool) -> VariantState:
    """Return the state after a look; a p-value is corrected for the looks as well."""
    verdict = replace(verdict, p=None if verdict.p is None else min(1.0, verdict.p / share))
    if over or verdict.kind in FINAL_KINDS:
        return VariantState(verdict=verdict, n=n, seeds_needed=n, decided=True)
    return _passed(VariantState(verdict=verdict, n=n, seeds_needed=n, decided=False), following, over=False)


def _passed(turn: VariantState, following: int, *, over: bool) -> VariantState:
    """Return the state after a look without a verdict."""
    if over:
        return replace(turn, seeds_needed=following, decided=True)
    text = f"inconclusive as yet (next look at {following} seeds)"
    return replace(turn, verdict=replace(turn.verdict, text=text, needs=None, needs_range=None), seeds_needed=following)


def _settled(verdict: Verdict, margin: float | None) -> bool:
    """Return whether the interval contains no decision point, so that Holm's procedure rejects them all."""
    if verdict.kind == "diverged" or verdict.low is None or verdict.high is None:
        return False
    points = (0.0,) if margin is None else (0.0, margin, -margin)
    return not any(verdict.low <= point <= verdict.high for point in points)


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
        texts = join_names((f"{name} after {counts[name]} seeds" for name in saved), MAX_NAMES)
        yield f"Not needed{' here' if question.setting else ''}: {trials} of {total * len(counts)} ({texts})"
