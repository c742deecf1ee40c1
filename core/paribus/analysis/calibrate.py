"""Calibration of a study from its records: spreads between seeds, and the seeds that an effect needs."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Final, final

from paribus.analysis.answer_notes import variance_notes
from paribus.analysis.api import entries_by_setting
from paribus.analysis.calibration_table import Calibration, Spread, largest_count
from paribus.analysis.costs import Pairs
from paribus.analysis.early_stopping import alpha_shares
from paribus.analysis.formatting import MAX_NAMES, plural
from paribus.analysis.p_values import check_positive, check_rate, summarise, variance_reduction
from paribus.analysis.pairing import metric_values, pair_trials
from paribus.analysis.power import (
    power_of_equivalence,
    power_to_detect,
    seeds_for_power,
    smallest_effect,
    spread_interval,
)
from paribus.analysis.select_trials import TrialsByVariant, check_records_comparable, select
from paribus.analysis.signal_to_noise import signals
from paribus.analysis.trials import ComparisonSpec, TrialEntry
from paribus.errors import NotComparableError, Problem, join_names
from paribus.planning.api import PlannedStudy, study

POWER: Final = 0.8
INDEPENDENT: Final = "(seeds not paired)"
TOO_FEW_TRIALS: Final = frozenset({"too-few", "no-records"})  # codes of problems that more trials solve


def calibrate(
    planned: PlannedStudy | str | Path,
    *,
    effect: float | None = None,
    power: float = POWER,
) -> Calibration:
    """Return the spread of a study between seeds, and the number of seeds that detects an effect.

    `effect` is the difference to detect, by default the study's margin; `power` is the probability of detecting it.
    A calibration shows no difference between variants, so it does not count as a look at the results.
    """
    if not isinstance(planned, PlannedStudy):
        planned = study(planned)
    return calibrate_settings(entries_by_setting(planned), effect=effect, power=power)


def calibrate_settings(
    settings: Sequence[tuple[Sequence[TrialEntry], ComparisonSpec]],
    *,
    effect: float | None = None,
    power: float = POWER,
) -> Calibration:
    """Return the calibration of every setting of a study, as one family; a note names the settings without a spread."""
    family = sum(len(comparison.swapped) for _, comparison in settings)
    calibrations: list[Calibration] = []
    missing: list[str] = []
    refused: list[NotComparableError] = []
    for entries, comparison in settings:
        try:
            calibrations.append(calibrate_entries(entries, comparison, effect=effect, power=power, family=family))
        except NotComparableError as error:
            if len(settings) == 1 or not {problem.code for problem in error.problems} <= TOO_FEW_TRIALS:
                raise
            missing.append(comparison.setting)
            refused.append(error)
    if not calibrations:
        raise refused[0]
    note = (f"Fewer than two pairs, and so no standard deviation: {'; '.join(missing)}",) if missing else ()
    return replace(calibrations[0], other_settings=tuple(calibrations[1:]), notes=(*calibrations[0].notes, *note))


def calibrate_entries(
    entries: Iterable[TrialEntry],
    comparison: ComparisonSpec,
    *,
    effect: float | None = None,
    power: float = POWER,
    family: int = 0,
) -> Calibration:
    """Return the calibration of one setting; a `NotComparableError` if it has too few trials for a spread.

    `family` is the number of verdicts in all settings; 0 for a single setting.
    """
    check_rate("power", power)
    effect = comparison.margin if effect is None else effect
    if effect is not None:
        check_positive("effect", effect)
    selection = select(entries, comparison)
    trials = selection.trials
    check_records_comparable(trials, comparison, selection.notes)
    family = family or len(comparison.swapped)
    requirement = _Requirement(comparison, effect, power, family)
    numbers = metric_values(list(trials[comparison.baseline].values()), comparison)
    _refuse_too_few(numbers, comparison)
    finished = {name: _finished(trials, name, comparison) for name in comparison.swapped}
    pairs = {name: _values(pairs, comparison) for name, pairs in finished.items()}
    rows = [requirement.spread(name, *values) for name, values in pairs.items() if len(values[0]) > 1]
    base = summarise(numbers)
    assert base.sd is not None, "two trials or more have finished"
    independent = requirement.spread_of(INDEPENDENT, base.n, base.sd * math.sqrt(2))
    detect_seeds = {row.variant: row.detect_seeds for row in rows or [independent]} if effect is not None else {}
    seeds = largest_count(detect_seeds)
    seconds = {name: _mean_seconds(variant_trials.values()) for name, variant_trials in trials.items()}
    missing = _count_missing(trials, seeds)
    known_seconds = [value for value in seconds.values() if value is not None]
    mean_seconds = math.fsum(known_seconds) / len(known_seconds) if known_seconds else None
    return Calibration(
        study=comparison.study,
        setting=comparison.setting,
        family=family,
        metric=comparison.metric,
        last=comparison.last,
        planned=len(comparison.seeds),
        variants=len(comparison.swapped),
        alpha=requirement.alpha,
        power=power,
        effect=effect,
        margin=comparison.margin,
        open_ended=comparison.open_ended,
        baseline=Spread(variant=comparison.baseline, n=base.n, sd=base.sd, interval=spread_interval(base.sd, base.n)),
        rows=tuple(rows),
        signals=signals(_models(finished), comparison),
        independent=independent,
        seeds=seeds,
        missing_trials=sum(missing.values()),
        seconds=None
        if mean_seconds is None
        else math.fsum(count * (seconds[name] or mean_seconds) for name, count in missing.items()),
        seconds_per_trial=mean_seconds,
        notes=(*_missing_spreads(pairs), *variance_notes(trials, comparison), *selection.notes),
    )


@final
@dataclass(frozen=True)
class _Requirement:
    """The effect, power and family for which numbers of seeds are computed."""

    comparison: ComparisonSpec
    effect: float | None
    power: float
    family: int  # number of verdicts that are corrected together

    @property
    def alpha(self) -> float:
        """The alpha of Holm's first step, which a single verdict must pass; with several looks, at the last one."""
        looks = () if self.comparison.open_ended else self.comparison.look_seeds
        share = alpha_shares(looks)[-1] if looks else 1.0
        return share * self.comparison.alpha / max(1, self.family)

    def spread(self, name: str, baseline: Sequence[float], variant: Sequence[float]) -> Spread:
        summary = summarise([b - a for a, b in zip(baseline, variant, strict=True)])
        assert summary.sd is not None, "there are two pairs or more"
        return self.spread_of(name, summary.n, summary.sd, variance_reduction(baseline, variant))

    def spread_of(self, name: str, n: int, sd: float, gain: float | None = None) -> Spread:
        ends = spread_interval(sd, n)
        # Differences without a spread are tested by the sign test, whose power does not depend on the effect.
        if sd == 0:
            return Spread(variant=name, n=n, sd=sd, interval=ends, reduction=gain)
        effects = [self._smallest_effect(spread) for spread in (sd, *ends)] if len(self.comparison.seeds) > 1 else []
        effects = [effect for effect in effects if math.isfinite(effect)]
        to_detect = [self._seeds_to_detect(spread) for spread in (sd, *ends)]
        to_equate = [self._seeds_for_equivalence(spread) for spread in (sd, *ends)]
        return Spread(
            variant=name,
            n=n,
            sd=sd,
            interval=ends,
            reduction=gain,
            smallest_effect=effects[0] if effects else None,
            smallest_effect_range=(effects[1], effects[2]) if effects else None,
            detect_seeds=to_detect[0],
            detect_seeds_range=(to_detect[1], to_detect[2]),
            equivalence_seeds=to_equate[0],
            equivalence_seeds_range=(to_equate[1], to_equate[2]),
        )

    def _smallest_effect(self, sd: float) -> float:
        n, open_ended = len(self.comparison.seeds), self.comparison.open_ended
        return smallest_effect(sd, n, self.alpha, self.power, open_ended=open_ended)

    def _seeds_to_detect(self, sd: float) -> int | None:
        effect = self.effect
        if effect is None:
            return None
        power_of = partial(power_to_detect, effect, sd, alpha=self.alpha, open_ended=self.comparison.open_ended)
        return seeds_for_power(power_of, self.power)

    def _seeds_for_equivalence(self, sd: float) -> int | None:
        margin = self.comparison.margin
        if margin is None:
            return None
        power_of = partial(power_of_equivalence, margin, sd, alpha=self.alpha, open_ended=self.comparison.open_ended)
        return seeds_for_power(power_of, self.power)


def _finished(trials: TrialsByVariant, name: str, comparison: ComparisonSpec) -> Pairs:
    """Return the pairs of the baseline and of the variant that a verdict would use."""
    paired = pair_trials(trials, name, comparison)
    return [] if paired.reason else paired.finished


def _values(pairs: Pairs, comparison: ComparisonSpec) -> tuple[list[float], list[float]]:
    """Return the metrics of the baseline and of the variant in these pairs."""
    baseline, variant = (metric_values([pair[side] for pair in pairs], comparison) for side in (0, 1))
    return baseline, variant


def _models(finished: Mapping[str, Pairs]) -> Iterator[dict[int, TrialEntry]]:
    """Yield the trials by seed of the baseline, and of each variant that has any."""
    if any(finished.values()):
        yield {baseline.seed: baseline for pairs in finished.values() for baseline, _ in pairs}
    yield from ({variant.seed: variant for _, variant in pairs} for pairs in finished.values() if pairs)


def _mean_seconds(entries: Iterable[TrialEntry]) -> float | None:
    """Return the mean time of the trials of a variant, including the trials that they start from."""
    seconds = [_seconds(entry) for entry in entries if entry.record is not None]
    return math.fsum(seconds) / len(seconds) if seconds else None


def _seconds(entry: TrialEntry) -> float:
    started, ended = (float(entry.provenance.get(key) or 0.0) for key in ("started", "ended"))
    parent_seconds = 0.0 if entry.parent is None else _seconds(entry.parent)
    return parent_seconds + (ended - started if 0 < started <= ended else 0.0)


def _count_missing(trials: TrialsByVariant, seeds: int | None) -> dict[str, int]:
    """Return the number of trials that each variant needs in addition for this many seeds."""
    return {
        name: max(0, (seeds or 0) - sum(entry.record is not None for entry in variant_trials.values()))
        for name, variant_trials in trials.items()
    }


def _missing_spreads(pairs: dict[str, tuple[list[float], list[float]]]) -> Iterator[str]:
    """Yield a note on the variants that have too few pairs for a spread."""
    names = [name for name, (_, variant) in pairs.items() if len(variant) < 2]
    if names:
        yield f"Fewer than two pairs, and so no standard deviation: {join_names(names, MAX_NAMES)}"


def _refuse_too_few(numbers: Sequence[float], comparison: ComparisonSpec) -> None:
    if len(numbers) > 1:
        return
    count = plural(len(numbers), "finished trial")
    message = f"the baseline of `{comparison.study}` has {count}, but a standard deviation needs two"
    raise NotComparableError(
        Problem(
            code="too-few", message=message, valid="`paribus calibrate STUDY --pilot 5`, which runs the first 5 seeds"
        )
    )
