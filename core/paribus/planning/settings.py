"""Settings: one comparison held several times over one store: at several sizes, matched in several ways, tuned or not.

Each is complete, with a baseline of its own, all variants and all seeds. Trials are shared wherever they are the same.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import product
from typing import Final, NamedTuple, final

from paribus.planning.match_search import BudgetMatch
from paribus.storage.store import Trial
from paribus.studies.designs import Variant
from paribus.studies.options import Match
from paribus.studies.study import Study

SAME: Final = "same"
BEST: Final = "each at its best"
UNMATCHED: Final = "unmatched"
TUNING: Final = "tuning"


class Excluded(NamedTuple):
    """A cell of the design that does not run, and why."""

    variant: str
    reason: str
    same_as: str = ""  # the variant whose spec it has


@final
@dataclass(frozen=True, kw_only=True)
class Setting:
    """One comparison: the study at one scale, matched in one way, and tuned or not. A plain study has one, unnamed."""

    study: Study  # narrowed to this setting: with one base, at most one match, and nothing to tune
    scale: str = ""
    match: str = ""
    tuned: bool | None = None  # None where the study tunes nothing
    variants: tuple[Variant, ...] = ()  # the baseline first
    excluded: tuple[Excluded, ...] = ()
    matched: Mapping[str, BudgetMatch] = field(default_factory=dict)
    trials: Mapping[tuple[str, str], tuple[Trial, ...]] = field(default_factory=dict)  # by variant and stage
    untimed: Mapping[str, Trial] = field(default_factory=dict)
    """The variants whose knob nobody has turned yet, as steps are still to be timed: each as it is written."""

    @property
    def name(self) -> str:
        return ", ".join(filter(None, (self.label, {None: "", False: SAME, True: BEST}[self.tuned])))

    @property
    def label(self) -> str:
        """Its scale and its match: what it has in common with the same comparison tuned otherwise."""
        return ", ".join(filter(None, (self.scale, self.match)))

    def trials_of(self, variant: str, stage: str | None = None) -> tuple[Trial, ...]:
        """A variant's trials of a stage; none where its tuning, or its timing, has not yet said which they are."""
        stage = self.study.metric.stage if stage is None else stage
        if self.tuned or variant in self.untimed:
            return self.trials.get((variant, stage), ())
        return self.trials[variant, stage]


def expand_settings(study: Study) -> Iterator[Setting]:
    """Every combination of scale, match, and tuned or not: the tuned one after the one that it is tuned from."""
    scales = study.scales or {"": study.base}
    matches = study.matches or (study.match,)
    alone = len(scales) * len(matches) == 1 and study.tune is None
    for (scale, base), match in product(scales.items(), matches):
        narrow = study if alone else replace(study, base=base, match=match, scales={}, matches=(), tune=None)
        named = _named(match, matches) if study.matches else ""
        for tuned in (None,) if study.tune is None else (False, True):
            yield Setting(study=narrow, scale=scale, match=named, tuned=tuned)


def _named(match: Match | None, others: tuple[Match | None, ...]) -> str:
    """`flops`, or `flops by dims.width` where several are matched on it."""
    if match is None:
        return UNMATCHED
    alike = Counter(each.on for each in others if each is not None)[match.on] > 1
    return f"{match.on} by {match.by}" if alike else match.on


def trials_per_variant(study: Study) -> tuple[int, str]:
    """How many trials each variant has at most, at each stage, and of what that comes, besides seeds."""
    settings, said = 1, ""
    for what, several in (("scales", len(study.scales)), ("match", len(study.matches))):
        if several:
            settings, said = settings * several, f"{said} x {what}: {several}"
    if study.tune is None:
        return settings * len(study.seeds), said
    tried = math.prod(map(len, study.tune.values.values())) + 1  # what a variant has untuned may not be among them
    said += f", tuned with {tried} values x seeds: {len(study.tune.seeds)}"
    return settings * (2 * len(study.seeds) + tried * len(study.tune.seeds)), said
