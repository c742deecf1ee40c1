"""Early stopping of a study with `stop: when-decided`: group-sequential verdicts, and the trials still needed.

A study has several looks, each after a fixed number of seeds, and each may decide a variant.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Final, final

from paribus.analysis.formatting import MAX_NAMES, plural
from paribus.analysis.pairing import PairedTrials, pair_trials, paired_differences
from paribus.analysis.select_trials import FAILED_STATES, TrialsByVariant
from paribus.analysis.trials import ComparisonSpec, TrialEntry
from paribus.analysis.verdict_words import pending_text
from paribus.analysis.verdicts import Better, Name, PairedDifferences, Verdict, decide
from paribus.errors import join_names

FINAL_KINDS: Final = ("better", "worse", "equivalent", "diverged")


@final
@dataclass(frozen=True, kw_only=True)
class LookData:
    """The data of a variant and the baseline on the first seeds of a study."""

    paired: PairedDifferences
    ended: bool  # every trial has a record or has failed
    has_all_records: bool  # no trial failed without a record, as a repaired trial would change the data of this look
    withheld: bool = False  # the certificate failed, so the variant never gets a verdict


@final
@dataclass(frozen=True, kw_only=True)
class VariantState:
    """The state of a variant: its verdict at its last look, and the seeds that it needs."""

    verdict: Verdict
    n: int  # seeds of the last look, 0 before the first
    seeds_needed: int
    decided: bool  # the verdict is final, or no look is left


LookReader = Callable[[Name, int], LookData]  # (variant, number of seeds) -> its data at that look


def alpha_shares(looks: Sequence[int]) -> tuple[float, ...]:
    """Return the share of alpha that each look spends: (n/N)² by n of N seeds (Kim and DeMets 1987)."""
    total = looks[-1]
    return tuple((current**2 - previous**2) / total**2 for previous, current in pairwise((0, *looks)))


def decide_sequentially(
    names: Sequence[Name],
    read_look: LookReader[Name],
    *,
    looks: Sequence[int],
    better: Better,
    margin: float | None,
    alpha: float = 0.05,
    open_ended: bool = False,
) -> Mapping[Name, VariantState]:
    """Return the state of each variant after group-sequential testing at the family-wise error rate `alpha`.

    `looks` are numbers of seeds, fixed in advance, in the study's order of seeds. Look k tests the open variants with
    `decide` at its share alpha_k of `alpha`. A variant stops at its first look with a final verdict, and keeps the
    interval of that look. A variant without a final verdict keeps the interval of the last look.

    A look takes place once all of its trials have ended, in any order. A variant with a trial that failed without a
    record is not tested before the last look: a repaired trial would change the data of a look that was already tested.

    **Definitions**

    1. A *decision point* is 0 and, with a margin m, also m and -m.
    2. The p-value of a variant is the largest of the p-values of its decision points. So Holm's procedure rejects it
       exactly if its interval, at the level of its step, contains no decision point; it is then *settled*. A variant
       without an interval, or with diverged trials, has the p-value 1, is not settled, and gets no claim.
    3. The *family* of a look is all variants that were not settled at an earlier look. A variant that stops without
       being settled (`equivalent` with 0 in its interval, `diverged` or withheld) stays in it, with the p-value 1.
    4. T is the set of variants whose true difference is a decision point, and K is their number.

    **Claim.** With probability 1 - alpha or more, the interval of every variant of T contains its true difference at
    every look. Then no verdict on T is wrong, because a wrong verdict needs an interval without the true difference.

    **Proof**

    1. Fix a look k and a variant of T. By Student's t, its interval at level alpha_k / K misses its true difference
       with probability alpha_k / K; widening it for outliers only lowers this. By the union bound over K variants and
       all looks, one or more of these intervals miss with probability sum_k K * alpha_k / K = sum_k alpha_k = alpha at
       most. The bound needs no independence: looks may reuse seeds, and variants may share a baseline or trials.
    2. Assume that none of these intervals misses. Then no variant of T is ever settled, by induction over the looks:
       a. If none of T was settled before look k, the family of look k contains all of T.
       b. Consider the variant of T with the smallest p-value. If Holm's procedure reaches it, K or more hypotheses
          remain, so its level is alpha_k / K or stricter. Its interval contains the one at alpha_k / K, hence its true
          difference, which is a decision point. So it is not rejected: the procedure stops there or earlier.
       c. The level of the step that stops applies to all variants that are not rejected, hence to all of T. It is
          alpha_k / K or stricter, so their intervals contain their true differences, and none is settled.
    3. The claim holds at all looks at once, so it holds at whichever look each variant stops. Other variants affect
       only the size of the family, which step 2 bounds from below by K.

    With `open_ended`, the data have always-valid intervals, and every look has all of alpha. Step 1 then reads: an
    interval at level alpha / K misses its true difference at one or more numbers of seeds with probability alpha / K.
    So looks may be added, and seeds.

    The names may be variants of several settings with the same looks. K then counts the variants of all settings. A
    verdict uses the seeds of its look only, even where another setting needs the same trials for a later look.

    **Not covered**

    - True differences between decision points: see `decide`. Their error rate is simulated, not proven.
    - Differences that are not symmetric: see `decide`.
    - The estimate: the mean of a variant that stops early is biased away from 0. Its interval still covers.
    - Efficiency: the union bound is conservative. The exact joint distribution of the looks would make the last
      interval some percent narrower, but needs an integral for each family, look and level.
    """
    states = {name: _initial_state(looks) for name in names}
    unsettled = list(names)
    shares = (1.0,) * len(looks) if open_ended else alpha_shares(looks)
    for index, (n, share) in enumerate(zip(looks, shares, strict=True)):
        is_last = n == looks[-1]
        look_data = {name: read_look(name, n) for name in names if not states[name].decided}
        tested = {name for name, data in look_data.items() if data.ended and (data.has_all_records or is_last)}
        family = {name: look_data[name].paired if name in tested else _no_differences(n) for name in unsettled}
        verdicts = decide(family, better=better, margin=margin, alpha=share * alpha)
        is_complete = all(data.ended for data in look_data.values())
        next_look = looks[index + 1] if is_complete and not is_last else n
        for name, data in look_data.items():
            stops = data.ended and (is_last or data.withheld)
            if name in tested:
                states[name] = _state_after_test(verdicts[name], share, n, next_look, stops=stops)
            else:
                states[name] = _state_without_test(states[name], next_look, stops=stops)
        unsettled = [name for name in unsettled if not _is_settled(verdicts[name], margin)]
        if not is_complete or all(state.decided for state in states.values()):
            break
    return states


def _no_differences(n: int) -> PairedDifferences:
    """Return a variant without data: its p-value is 1, and it still counts in its family."""
    return PairedDifferences(differences=(), diverged=0, planned=n)


def _initial_state(looks: Sequence[int]) -> VariantState:
    """Return the state of a variant before the first look."""
    verdict = decide({"": _no_differences(looks[0])}, better="lower", margin=None)[""]
    return _state_without_test(VariantState(verdict=verdict, n=0, seeds_needed=0, decided=False), looks[0], stops=False)


def _state_after_test(verdict: Verdict, share: float, n: int, next_look: int, *, stops: bool) -> VariantState:
    """Return the state after a look that tested the variant; its p-value is also corrected for the looks."""
    verdict = replace(verdict, p=None if verdict.p is None else min(1.0, verdict.p / share))
    if stops or verdict.kind in FINAL_KINDS:
        return VariantState(verdict=verdict, n=n, seeds_needed=n, decided=True)
    return _state_without_test(
        VariantState(verdict=verdict, n=n, seeds_needed=n, decided=False), next_look, stops=False
    )


def _state_without_test(state: VariantState, next_look: int, *, stops: bool) -> VariantState:
    """Return the state after a look without a final verdict."""
    if stops:
        return replace(state, seeds_needed=next_look, decided=True)
    verdict = replace(state.verdict, text=pending_text(next_look), needs=None, needs_range=None)
    return replace(state, verdict=verdict, seeds_needed=next_look)


def _is_settled(verdict: Verdict, margin: float | None) -> bool:
    """Return whether the interval contains no decision point."""
    if verdict.kind == "diverged" or verdict.low is None or verdict.high is None:
        return False
    points = (0.0,) if margin is None else (0.0, margin, -margin)
    return not any(verdict.low <= point <= verdict.high for point in points)


@final
@dataclass(frozen=True, kw_only=True)
class RowInput:
    """The trials, comparison and pairs of one row of a table."""

    trials: TrialsByVariant
    comparison: ComparisonSpec
    paired: PairedTrials
    verdict: Verdict | None = None  # of the last look, in a study that stops early


def row_inputs(
    trials: TrialsByVariant, comparison: ComparisonSpec, states: Mapping[str, VariantState]
) -> Mapping[str, RowInput]:
    """Return the input of each variant's row: all seeds, or those of its last look in a study that stops early."""
    if not states:
        paired = {name: pair_trials(trials, name, comparison) for name in comparison.swapped}
        return {name: RowInput(trials=trials, comparison=comparison, paired=pairs) for name, pairs in paired.items()}
    inputs = {}
    for name, state in states.items():
        look_trials, look_comparison = first_seeds(trials, comparison, state.n)
        row_trials, row_comparison = first_seeds(trials, comparison, state.seeds_needed)
        inputs[name] = RowInput(
            trials=row_trials,
            comparison=row_comparison,
            paired=pair_trials(look_trials, name, look_comparison),
            verdict=state.verdict,
        )
    return inputs


def variant_states(settings: Sequence[tuple[TrialsByVariant, ComparisonSpec]]) -> list[Mapping[str, VariantState]]:
    """Return the state of each variant of each setting; all of them are one family.

    Trials beyond a look, and the order in which trials ended, do not change it.
    """

    def read_look(key: tuple[int, str], n: int) -> LookData:
        index, name = key
        trials, comparison = first_seeds(*settings[index], n)
        paired = pair_trials(trials, name, comparison)
        entries = [trials[side].get(seed) for side in (comparison.baseline, name) for seed in comparison.seeds]
        return LookData(
            paired=paired_differences(trials, name, paired, comparison),
            ended=all(entry is not None and _has_ended(entry) for entry in entries),
            has_all_records=all(entry is not None and entry.record is not None for entry in entries),
            withheld=bool(paired.reason),
        )

    _, main = settings[0]
    states = decide_sequentially(
        [(index, name) for index, (_, comparison) in enumerate(settings) for name in comparison.swapped],
        read_look,
        looks=main.look_seeds,
        better=main.better,
        margin=main.margin,
        alpha=main.alpha,
        open_ended=main.open_ended,
    )
    return [
        {name: states[index, name] for name in comparison.swapped} for index, (_, comparison) in enumerate(settings)
    ]


def _has_ended(entry: TrialEntry) -> bool:
    return entry.record is not None or entry.state in FAILED_STATES


def first_seeds(trials: TrialsByVariant, comparison: ComparisonSpec, n: int) -> tuple[TrialsByVariant, ComparisonSpec]:
    """Return the trials of the first `n` seeds, and the comparison restricted to them."""
    seeds = comparison.seeds[:n]
    selected_seeds = frozenset(seeds)
    selected_trials = {
        name: {seed: entry for seed, entry in variant_trials.items() if seed in selected_seeds}
        for name, variant_trials in trials.items()
    }
    return selected_trials, replace(comparison, seeds=seeds)


def seeds_by_variant(states: Mapping[str, VariantState], comparison: ComparisonSpec) -> dict[str, int]:
    """Return the number of seeds that each variant needs now; the baseline needs the largest of them."""
    counts = {name: state.seeds_needed for name, state in states.items()}
    return {comparison.baseline: max(counts.values(), default=len(comparison.seeds)), **counts}


def is_needed(entry: TrialEntry, counts: Mapping[str, int], comparison: ComparisonSpec) -> bool:
    """Return whether a trial is of a seed that its variant needs."""
    return entry.seed in comparison.seeds[: counts.get(entry.variant, len(comparison.seeds))]


def skipped_notes(counts: Mapping[str, int], comparison: ComparisonSpec) -> Iterator[str]:
    """Yield a note on the trials that did not have to run."""
    total = len(comparison.seeds)
    saved = {name: total - count for name, count in counts.items() if count < total}
    if saved:
        trials = plural(sum(saved.values()), "trial")
        texts = join_names((f"{name} after {counts[name]} seeds" for name in saved), MAX_NAMES)
        yield f"Not needed{' here' if comparison.setting else ''}: {trials} of {total * len(counts)} ({texts})"
