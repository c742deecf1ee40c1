"""Tuning: an inner loop on seeds of its own, after which every variant is also shown at its best.

For every variant every value is trained on the tuning seeds, and that of the best mean is chosen. The choice follows
from records alone, so that a study that was cut goes on as it would have.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Final, final

from paribus.errors import join_names
from paribus.planning.match_budget import resolve_with_budget
from paribus.planning.settings import BEST, SAME, TUNING, Excluded, Setting
from paribus.planning.variants import Fingerprint, Specs, build_trials, lineage, matched_changes
from paribus.registry import Index
from paribus.specs.paths import get_path
from paribus.specs.reading_cache import ReadingCache
from paribus.storage.atomic import parse_number
from paribus.storage.store import Trial
from paribus.studies.budgets import FlopsPerStep
from paribus.studies.designs import BASELINE, Change, Variant, format_value
from paribus.studies.options import Cell, Tune
from paribus.studies.stages import key_in_stage
from paribus.studies.study import Study

LARGEST: Final = 1e200  # a metric beyond it is no result, though it is a number

Score = Callable[[Trial], float | None]
"""The metric at the end of a trial: nan where it diverged, infinite where it failed, None where nothing is known."""
FAILED: Final = math.inf
FAILURES: Final = ("failed", "out-of-memory", "timeout")  # which a trial is not tried again for by itself


def score_of(record: Mapping[str, Any] | None, metric: str, failure: Mapping[str, Any] | None = None) -> float | None:
    """What a trial came to, from its record, or from how it ended without one."""
    if record is None:
        return FAILED if failure is not None and failure.get("state") in FAILURES else None
    found = record["result"]["metrics"].get(metric) if record["result"]["state"] == "done" else None
    value = math.nan if found is None else parse_number(found)
    return value if abs(value) <= LARGEST else math.nan


@final
@dataclass(frozen=True)
class Candidate:
    """One value of each tuned key, and what its trials came to."""

    cell: Cell
    trials: tuple[Trial, ...]  # whose metric it is: one for each tuning seed
    scores: tuple[float | None, ...]

    @property
    def pending(self) -> int:
        """How many of them have no record yet."""
        return sum(score is None for score in self.scores)

    @property
    def diverged(self) -> int:
        return sum(score is not None and math.isnan(score) for score in self.scores)

    @property
    def failed(self) -> int:
        """How many left no record, for a reason that running them once more would not mend by itself."""
        return sum(score is not None and math.isinf(score) for score in self.scores)

    @property
    def mean(self) -> float | None:
        """The mean of the metric, where every seed came to one."""
        numbers = [score for score in self.scores if score is not None and math.isfinite(score)]
        return math.fsum(numbers) / len(numbers) if numbers and len(numbers) == len(self.scores) else None


@final
@dataclass(frozen=True)
class VariantTuning:
    """A variant, what was tried with it, and what was chosen: nothing, until all of it has a record."""

    setting: str  # the one that is tuned
    variant: str
    better: str
    candidates: tuple[Candidate, ...]
    default: int  # which of them is what the variant has untuned
    trials: tuple[Trial, ...]  # of all stages
    max_following: int  # how many trials there will be with what is chosen, at most

    @property
    def pending(self) -> int:
        return sum(each.pending for each in self.candidates)

    @cached_property
    def best(self) -> int | None:
        """Which was chosen. What diverged or failed on any seed never is; of equal means it is the variant's own one.

        Where all did there is nothing to choose by, and the variant stays as it is.
        """
        if self.pending:
            return None
        means = {place: each.mean for place, each in enumerate(self.candidates) if each.mean is not None}
        if not means:
            return self.default
        sign = 1.0 if self.better == "lower" else -1.0
        return min(means, key=lambda place: (sign * (means[place] or 0.0), place != self.default, place))

    @property
    def chosen(self) -> Cell | None:
        return None if self.best is None else self.candidates[self.best].cell

    @property
    def edge_keys(self) -> tuple[str, ...]:
        """The keys whose chosen number is the least or the greatest of those tried: a better one may lie beyond."""
        if self.chosen is None or all(each.mean is None for each in self.candidates):
            return ()
        return tuple(key for place, (key, value) in enumerate(self.chosen) if self._at_an_edge(place, value))

    def _at_an_edge(self, place: int, value: Any) -> bool:
        values = [each.cell[place][1] for each in self.candidates]
        if any(isinstance(each, bool) or not isinstance(each, (int, float)) for each in values):
            return False
        return len(set(values)) > 1 and value in (min(values), max(values))


def pending_notes(tuned: Sequence[VariantTuning]) -> Iterator[str]:
    """What of a study is not known before its tuning has ended."""
    waiting: dict[str, list[VariantTuning]] = {}
    for each in tuned:
        if each.best is None:
            waiting.setdefault(each.setting, []).append(each)
    for setting, those in waiting.items():
        left = sum(each.pending for each in those)
        names = join_names((each.variant for each in those), 8)
        where = setting.removesuffix(SAME).removesuffix(", ")
        most = sum(each.max_following for each in those)
        yield (
            f"not known yet{f' ({where})' if where else ''}: the trials of {names} "
            f"{BEST}: {left} tuning {'trial has' if left == 1 else 'trials have'} no record, and at most {most} follow"
        )


def format_cell(cell: Cell) -> str:
    """`optimizer.lr=0.001`."""
    return " ".join(f"{key}={format_value(value)}" for key, value in cell)


def tune_variants(
    setting: Setting,
    tune: Tune,
    index: Index,
    fingerprint: Fingerprint,
    score: Score,
    spend: FlopsPerStep | None = None,
) -> Iterator[VariantTuning]:
    """What is to be tried with each variant of a setting, and what has come of it."""
    study = setting.study
    following, memory = len(study.seeds) * len(study.stages), ReadingCache()
    for variant in (each for each in setting.variants if each.name not in setting.untimed):
        own, found = _tried(setting, variant, tune, index, spend, memory)
        cells: list[Candidate] = []
        every: list[Trial] = []
        for cell, specs in found:
            trials = _trials(setting, variant, cell, specs, tune, index, fingerprint)
            measured = tuple(trial for trial in trials if trial.stage == study.metric.stage)
            cells.append(Candidate(cell, measured, tuple(map(score, measured))))
            every += trials
        yield VariantTuning(setting.name, variant.name, study.metric.better, tuple(cells), own, tuple(every), following)


def _tried(
    setting: Setting, variant: Variant, tune: Tune, index: Index, spend: FlopsPerStep | None, memory: ReadingCache
) -> tuple[int, list[tuple[Cell, Specs]]]:
    """Every combination once, with its specs, and which is the variant's own: that is tried, written or not."""
    study = setting.study
    untuned = resolve_with_budget(study, variant, index, _knobs(setting, variant), spend, memory)
    lines: list[Any] = []
    found: list[tuple[Cell, Specs]] = []
    for cell in tune.cells():
        specs = resolve_with_budget(study, variant, index, [*_knobs(setting, variant), *cell], spend, memory)
        line = lineage(study, specs)
        if line not in lines:
            lines.append(line)
            found.append((tuple((key, _at(study, specs, key)) for key, _ in cell), specs))
    own = lineage(study, untuned)
    if own not in lines:
        lines.insert(0, own)
        found.insert(0, (tuple((key, _at(study, untuned, key)) for key in tune.values), untuned))
    return lines.index(own), found


def _at(study: Study, specs: Specs, key: str) -> Any:
    """What a key has come to in the resolved spec of the first stage that it is meant for."""
    for stage in study.stages:
        here = key_in_stage(key, stage, study.stages)
        if here is not None:
            return get_path(specs[stage.name], here)
    return None


def _knobs(setting: Setting, variant: Variant) -> list[Change]:
    """What was turned for this variant to match a budget, which tuning leaves as it is."""
    return matched_changes(setting.study, setting.matched, variant.name)


def _trials(
    setting: Setting,
    variant: Variant,
    cell: Cell,
    specs: Specs,
    tune: Tune,
    index: Index,
    fingerprint: Fingerprint,
) -> list[Trial]:
    """The trials of one variant with one combination, on the tuning seeds."""
    study = replace(setting.study, seeds=tune.seeds)
    alone = replace(variant, name=BASELINE)  # it is held against no other
    trials = build_trials(study, [alone], {BASELINE: specs}, {}, index, fingerprint)
    name = ", ".join(filter(None, (setting.label, f"{TUNING} {format_cell(cell)}")))
    return [replace(trial, variant=variant.name, setting=name) for trial in trials]


def tuned_setting(
    empty: Setting,
    same: Setting,
    found: Sequence[VariantTuning],
    index: Index,
    fingerprint: Fingerprint,
    spend: FlopsPerStep | None = None,
) -> Setting:
    """The same comparison with every variant at what was chosen for it, as far as that is known.

    Nothing of it is known before the baseline's own choice.
    """
    study, chosen = same.study, {each.variant: each for each in found if each.best is not None}
    empty = replace(empty, variants=same.variants, matched=same.matched, excluded=same.excluded, untimed=same.untimed)
    if BASELINE not in chosen:
        return empty
    known = [variant for variant in same.variants if variant.name in chosen]
    resolved = {variant.name: _best_specs(same, variant, chosen[variant.name], index, spend) for variant in known}
    base = lineage(study, resolved[BASELINE])
    twins = [each for each in known if each.name != BASELINE and lineage(study, resolved[each.name]) == base]
    kept = [each for each in known if each not in twins]
    trials = build_trials(study, kept, resolved, same.matched, index, fingerprint)
    through: dict[tuple[str, str], list[Trial]] = {}
    first: dict[str, Trial] = {}
    for trial in trials:
        turned = {**trial.matched_values, **_turned(study, trial, chosen)}
        own = first.setdefault(trial.identity, replace(trial, matched_values=turned, setting=empty.name))
        through.setdefault((trial.variant, trial.stage), []).append(own)
    why = f"at its best it is the same spec as {BASELINE}"
    return replace(
        empty,
        variants=tuple(each for each in same.variants if each not in twins),
        excluded=(*same.excluded, *(Excluded(each.name, why, BASELINE) for each in twins)),
        trials={key: tuple(each) for key, each in through.items()},
    )


def _best_specs(
    same: Setting, variant: Variant, tuned: VariantTuning, index: Index, spend: FlopsPerStep | None
) -> Specs:
    cell = () if tuned.best == tuned.default else tuned.chosen or ()
    return resolve_with_budget(same.study, variant, index, [*_knobs(same, variant), *cell], spend)


def _turned(study: Study, trial: Trial, chosen: Mapping[str, VariantTuning]) -> dict[str, Any]:
    """The tuned keys in which a trial differs from the baseline's: what the pair may differ in besides."""
    stage = next(each for each in study.stages if each.name == trial.stage)
    base = dict(chosen[BASELINE].chosen or ())
    found = {key_in_stage(key, stage, study.stages): value for key, value in chosen[trial.variant].chosen or ()
             if value != base.get(key)}  # fmt: skip
    return {key: value for key, value in found.items() if key is not None}
