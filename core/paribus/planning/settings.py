"""Settings: the same comparison at several scales, with several matches, tuned or not.

Each setting is complete, with a baseline, all variants and all seeds. Settings share trials that are the same.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import product
from typing import Final, NamedTuple, final

from paribus.storage.store import Trial
from paribus.studies.designs import Variant
from paribus.studies.study import Study
from paribus.studies.study_keys import Match

SAME: Final = "same"
BEST: Final = "each at its best"
UNMATCHED: Final = "unmatched"
TUNING: Final = "tuning"


class Excluded(NamedTuple):
    """A cell of the design that does not run, and the reason."""

    variant: str
    reason: str
    same_as: str = ""  # the variant with the same spec


class TimeMeasurement(NamedTuple):
    """Measurement of a match on time: the ratio over interleaved rounds, and the machine."""

    ratio: float
    low: float  # of the 95 % interval, widened by the noise
    high: float
    noise: float  # deviation from 1 that two models of the baseline show (A/A)
    rounds: int
    machine: str
    when: str = ""  # UTC date
    changes: tuple[str, ...] = ()  # of machine and code since then


class BudgetMatch(NamedTuple):
    """The value of the matched option, with the cost of the variant and of the baseline."""

    value: float
    count: int  # type: ignore[assignment]  # a tuple has a method of this name
    target: int
    timing: TimeMeasurement | None = None  # of a match on time; then count and target are nanoseconds

    @property
    def residual(self) -> float:
        """Relative difference to the baseline."""
        return self.count / self.target - 1.0 if self.timing is None else self.timing.ratio - 1.0

    @property
    def residual_text(self) -> str:
        """Residual as text: `+0.42%`, or `+0.4% [-0.3%, +1.1%], A/A ±0.8%` for a measurement."""
        if self.timing is None:
            return f"{self.residual:+.2%}"
        ends = f"[{self.timing.low - 1:+.1%}, {self.timing.high - 1:+.1%}]"
        return f"{self.residual:+.1%} {ends}, A/A ±{self.timing.noise:.1%}"


@final
@dataclass(frozen=True, kw_only=True)
class Setting:
    """A comparison at one scale, with one match, tuned or not. A plain study has one setting without a name."""

    study: Study  # with the base and the match of this setting, and without tuning
    scale: str = ""
    match: str = ""
    tuned: bool | None = None  # None in a study without tuning
    variants: tuple[Variant, ...] = ()  # the baseline first
    excluded: tuple[Excluded, ...] = ()
    matched: Mapping[str, BudgetMatch] = field(default_factory=dict)
    trials: Mapping[tuple[str, str], tuple[Trial, ...]] = field(default_factory=dict)  # by variant and stage
    untimed: Mapping[str, Trial] = field(default_factory=dict)
    """Trials of variants whose match on time is not measured yet, with their values before matching."""

    @property
    def name(self) -> str:
        """Label of the setting with its tuning."""
        return ", ".join(filter(None, (self.label, {None: "", False: SAME, True: BEST}[self.tuned])))

    @property
    def label(self) -> str:
        """Scale and match, which the tuned and untuned setting share."""
        return ", ".join(filter(None, (self.scale, self.match)))

    def trials_of(self, variant: str, stage: str | None = None) -> tuple[Trial, ...]:
        """Return a variant's trials of a stage; empty while tuning or timing has not decided on them."""
        stage = self.study.metric.stage if stage is None else stage
        if self.tuned or variant in self.untimed:
            return self.trials.get((variant, stage), ())
        return self.trials[variant, stage]


def expand_settings(study: Study) -> Iterator[Setting]:
    """Yield every combination of scale, match and tuning; a tuned setting follows the untuned one."""
    scales = study.scales or {"": study.base}
    matches = study.matches or (study.match,)
    is_single = len(scales) * len(matches) == 1 and study.tune is None
    for (scale, base), match in product(scales.items(), matches):
        narrow = study if is_single else replace(study, base=base, match=match, scales={}, matches=(), tune=None)
        name = _match_name(match, matches) if study.matches else ""
        for tuned in (None,) if study.tune is None else (False, True):
            yield Setting(study=narrow, scale=scale, match=name, tuned=tuned)


def _match_name(match: Match | None, matches: tuple[Match | None, ...]) -> str:
    """Return `flops`, or `flops by dims.width` where several matches are on FLOPs."""
    if match is None:
        return UNMATCHED
    is_shared = Counter(it.on for it in matches if it is not None)[match.on] > 1
    return f"{match.on} by {match.by}" if is_shared else match.on


def trials_per_variant(study: Study) -> tuple[int, str]:
    """Return the limit of trials of a variant at each stage, and its factors besides seeds as text."""
    settings, factors = 1, ""
    for name, size in (("scales", len(study.scales)), ("match", len(study.matches))):
        if size:
            settings, factors = settings * size, f"{factors} x {name}: {size}"
    if study.tune is None:
        return settings * len(study.seeds), factors
    values = math.prod(map(len, study.tune.values.values())) + 1  # and the variant's own value
    factors += f", tuned with {values} values x seeds: {len(study.tune.seeds)}"
    return settings * (2 * len(study.seeds) + values * len(study.tune.seeds)), factors
