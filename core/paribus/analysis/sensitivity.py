"""Sensitivity of a variant to a tuned number, such as its learning rate: what a wrong choice of it costs."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, final

from paribus.analysis.p_values import interval, summarise
from paribus.planning.tuning import Candidate, VariantTuning
from paribus.studies.designs import BASELINE

MIN_VALUES: Final = 3


@final
@dataclass(frozen=True, kw_only=True)
class Sensitivity:
    """How much worse the metric is on average over the tried values than at the best (Wortsman et al. 2023)."""

    variant: str
    setting: str
    value: float
    low: float | None  # of Student's t over the tuning seeds
    high: float | None
    against_baseline: tuple[float, float | None, float | None] | None = None  # difference, paired by seed

    def to_json(self) -> dict[str, Any]:
        return {**vars(self), "against_baseline": self.against_baseline and [*self.against_baseline]}


def sensitivities(
    tunings: Sequence[VariantTuning], values: Mapping[str, Sequence[Any]], alpha: float
) -> list[Sensitivity]:
    """Return the sensitivity of each variant to the one key that is tuned, if all of its values have a metric.

    Nothing is returned for several keys, for values that are no numbers, and for fewer than three. A value that a
    variant has besides those that all variants try does not count.
    """
    if len(values) != 1:
        return []
    [numbers] = values.values()
    if len(numbers) < MIN_VALUES or any(isinstance(it, bool) or not isinstance(it, int | float) for it in numbers):
        return []
    found: list[Sensitivity] = []
    baselines: dict[str, list[float]] = {}
    for tuning in tunings:
        losses = _losses(tuning, numbers)
        if losses is None:
            continue
        regret = regrets(losses)
        if tuning.variant == BASELINE:
            baselines[tuning.setting] = regret
        baseline = baselines.get(tuning.setting)
        difference = None
        if baseline is not None and tuning.variant != BASELINE and len(baseline) == len(regret):
            difference = _mean_and_interval([b - a for a, b in zip(baseline, regret, strict=True)], alpha)
        mean, low, high = _mean_and_interval(regret, alpha)
        found.append(
            Sensitivity(
                variant=tuning.variant,
                setting=tuning.setting,
                value=mean,
                low=low,
                high=high,
                against_baseline=difference,
            )
        )
    return found


def candidates_within_noise(tuning: VariantTuning, alpha: float) -> list[Candidate]:
    """Return the tried values that are not told apart from the chosen one: the interval of their difference has 0.

    Differences are paired by tuning seed, and each interval stands by itself. With one seed nothing is told apart, and
    nothing is returned.
    """
    chosen = None if tuning.best is None else tuning.candidates[tuning.best]
    if chosen is None or chosen.mean is None:
        return []
    found: list[Candidate] = []
    for candidate in tuning.candidates:
        if candidate is chosen or candidate.mean is None:
            continue
        pairs = zip(candidate.scores, chosen.scores, strict=True)
        _, low, high = _mean_and_interval([(score or 0.0) - (best or 0.0) for score, best in pairs], alpha)
        if low is not None and high is not None and low <= 0 <= high:
            found.append(candidate)
    return found


def regrets(losses: Sequence[Sequence[float]]) -> list[float]:
    """Return for each seed the mean loss over values less that of the value with the best mean; `losses[value][seed]`.

    The value is chosen for all seeds together, as tuning does.
    """
    best = min(losses, key=math.fsum)
    return [math.fsum(column) / len(losses) - own for column, own in zip(zip(*losses, strict=True), best, strict=True)]


def _losses(tuning: VariantTuning, numbers: Sequence[Any]) -> list[list[float]] | None:
    """Return the metric by value and seed, lower is better; None if one is missing."""
    sign = 1.0 if tuning.better == "lower" else -1.0
    by_value = {candidate.cell[0][1]: candidate for candidate in tuning.candidates if len(candidate.cell) == 1}
    if any(number not in by_value or by_value[number].mean is None for number in numbers):
        return None
    return [[sign * (score or 0.0) for score in by_value[number].scores] for number in numbers]


def _mean_and_interval(numbers: Sequence[float], alpha: float) -> tuple[float, float | None, float | None]:
    low, high = interval(summarise(numbers), alpha) or (None, None)
    return math.fsum(numbers) / len(numbers), low, high
