"""Tuning: train every variant with each value on separate seeds, and choose the value with the best mean.

The choice depends on records alone, so an interrupted study continues as if it had not been interrupted.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Final, final

from paribus.errors import SpecError, join_names
from paribus.planning.last_evaluations import evaluations, too_few_evaluations, with_last_mean
from paribus.planning.match_budget import resolve_with_budget
from paribus.planning.settings import BEST, SAME, TUNING, Excluded, Setting
from paribus.planning.variants import Fingerprint, Specs, build_trials, lineage, matched_changes
from paribus.registry import Index
from paribus.specs.resolve import ReadingCache
from paribus.specs.tree import get_path
from paribus.storage.atomic import parse_number
from paribus.storage.store import Trial
from paribus.studies.budgets import FlopsPerStep
from paribus.studies.designs import BASELINE, Change, Variant, format_value
from paribus.studies.parse_options import Cell, Tune
from paribus.studies.stages import key_in_stage
from paribus.studies.study import Study

MAX_METRIC: Final = 1e200  # a larger value counts as diverged

Score = Callable[[Trial], float | None]
"""The metric at the end of a trial: nan if it diverged, infinite if it failed, None without a record."""
FAILED: Final = math.inf
FAILURES: Final = ("failed", "out-of-memory", "timeout")  # states of trials that are not retried automatically


def score_of(
    record: Mapping[str, Any] | None, metric: str, failure: Mapping[str, Any] | None = None, *, last: int = 1
) -> float | None:
    """Return the score of a trial from its record, or from its failure.

    It is the mean of the `last` evaluations; a `SpecError` if the trial has fewer.
    """
    if record is None:
        return FAILED if failure is not None and failure.get("state") in FAILURES else None
    has_metric, record = metric in record["result"]["metrics"], with_last_mean(record, metric, last)
    if has_metric and metric not in record["result"]["metrics"]:
        raise SpecError(too_few_evaluations("a tuning trial", metric, last, len(evaluations(record, metric))))
    metrics = record["result"]["metrics"] if record["result"]["state"] == "done" else {}
    value = math.nan if metrics.get(metric) is None else parse_number(metrics[metric])
    return value if abs(value) <= MAX_METRIC else math.nan


@final
@dataclass(frozen=True)
class Candidate:
    """One value for each tuned key, with its trials and their scores."""

    cell: Cell
    trials: tuple[Trial, ...]  # of the metric's stage, one for each tuning seed
    scores: tuple[float | None, ...]

    @property
    def pending(self) -> int:
        """Number of trials without a record."""
        return sum(score is None for score in self.scores)

    @property
    def diverged(self) -> int:
        """Number of trials that diverged."""
        return sum(score is not None and math.isnan(score) for score in self.scores)

    @property
    def failed(self) -> int:
        """Number of trials that failed and are not retried automatically."""
        return sum(score is not None and math.isinf(score) for score in self.scores)

    @property
    def mean(self) -> float | None:
        """Mean of the metric; None unless all seeds have one."""
        numbers = [score for score in self.scores if score is not None and math.isfinite(score)]
        return math.fsum(numbers) / len(numbers) if numbers and len(numbers) == len(self.scores) else None


@final
@dataclass(frozen=True)
class VariantTuning:
    """A variant with its candidates, of which one is chosen when all have records."""

    setting: str
    variant: str
    better: str
    candidates: tuple[Candidate, ...]
    default: int  # index of the candidate with the variant's values before tuning
    trials: tuple[Trial, ...]  # of all stages
    max_following: int  # limit of the number of trials with the chosen value

    @property
    def pending(self) -> int:
        """Number of trials without a record."""
        return sum(candidate.pending for candidate in self.candidates)

    @cached_property
    def best(self) -> int | None:
        """Index of the chosen candidate, or None while trials are pending.

        A candidate with a diverged or failed seed is never chosen. The default wins ties, and is chosen where all
        candidates diverged or failed.
        """
        if self.pending:
            return None
        means = {index: it.mean for index, it in enumerate(self.candidates) if it.mean is not None}
        if not means:
            return self.default
        sign = 1.0 if self.better == "lower" else -1.0
        return min(means, key=lambda index: (sign * (means[index] or 0.0), index != self.default, index))

    @property
    def chosen(self) -> Cell | None:
        """Values of the chosen candidate."""
        return None if self.best is None else self.candidates[self.best].cell

    @property
    def edge_keys(self) -> tuple[str, ...]:
        """Keys whose chosen number is the smallest or largest candidate: a better value may lie beyond."""
        if self.chosen is None or all(candidate.mean is None for candidate in self.candidates):
            return ()
        return tuple(key for index, (key, value) in enumerate(self.chosen) if self._is_at_edge(index, value))

    def _is_at_edge(self, index: int, value: Any) -> bool:
        values = [candidate.cell[index][1] for candidate in self.candidates]
        if any(isinstance(it, bool) or not isinstance(it, (int, float)) for it in values):
            return False
        return len(set(values)) > 1 and value in (min(values), max(values))


def pending_notes(tunings: Sequence[VariantTuning]) -> Iterator[str]:
    """Yield a note for each setting whose tuning has not ended."""
    pending: dict[str, list[VariantTuning]] = {}
    for tuning in tunings:
        if tuning.best is None:
            pending.setdefault(tuning.setting, []).append(tuning)
    for setting, variants in pending.items():
        count = sum(tuning.pending for tuning in variants)
        names = join_names((tuning.variant for tuning in variants), 8)
        label = setting.removesuffix(SAME).removesuffix(", ")
        following = sum(tuning.max_following for tuning in variants)
        yield (
            f"not known yet{f' ({label})' if label else ''}: the trials of {names} "
            f"{BEST}: {count} tuning {'trial has' if count == 1 else 'trials have'} no record, "
            f"and at most {following} follow"
        )


def format_cell(cell: Cell) -> str:
    """Return `optimizer.lr=0.001`."""
    return " ".join(f"{key}={format_value(value)}" for key, value in cell)


def tune_variants(
    setting: Setting,
    tune: Tune,
    index: Index,
    fingerprint: Fingerprint,
    score: Score,
    flops_per_step: FlopsPerStep | None = None,
) -> Iterator[VariantTuning]:
    """Yield each variant of a setting with its candidates and their scores."""
    study = setting.study
    max_following, memory = len(study.seeds) * len(study.stages), ReadingCache()
    for variant in setting.variants:
        if variant.name in setting.untimed:
            continue
        default, cells = _distinct_cells(setting, variant, tune, index, flops_per_step, memory)
        candidates: list[Candidate] = []
        all_trials: list[Trial] = []
        for cell, specs in cells:
            trials = _tuning_trials(setting, variant, cell, specs, tune, index, fingerprint)
            measured = tuple(trial for trial in trials if trial.stage == study.metric.stage)
            candidates.append(Candidate(cell, measured, tuple(map(score, measured))))
            all_trials += trials
        better = study.metric.better
        yield VariantTuning(
            setting.name, variant.name, better, tuple(candidates), default, tuple(all_trials), max_following
        )


def _distinct_cells(
    setting: Setting,
    variant: Variant,
    tune: Tune,
    index: Index,
    flops_per_step: FlopsPerStep | None,
    memory: ReadingCache,
) -> tuple[int, list[tuple[Cell, Specs]]]:
    """Return the different combinations with their specs, and the index of the variant's own values.

    The variant's own values are always among them.
    """
    study = setting.study
    matched = matched_changes(study, setting.matched, variant.name)
    default = resolve_with_budget(study, variant, index, matched, flops_per_step, memory)
    lineages: list[Any] = []
    cells: list[tuple[Cell, Specs]] = []
    for cell in tune.cells():
        specs = resolve_with_budget(study, variant, index, [*matched, *cell], flops_per_step, memory)
        specs_of_metric = lineage(study, specs)
        if specs_of_metric not in lineages:
            lineages.append(specs_of_metric)
            cells.append((tuple((key, _resolved_value(study, specs, key)) for key, _ in cell), specs))
    default_lineage = lineage(study, default)
    if default_lineage not in lineages:
        lineages.insert(0, default_lineage)
        cells.insert(0, (tuple((key, _resolved_value(study, default, key)) for key in tune.values), default))
    return lineages.index(default_lineage), cells


def _resolved_value(study: Study, specs: Specs, key: str) -> Any:
    """Return the value of a key in the first stage that has it."""
    for stage in study.stages:
        stage_key = key_in_stage(key, stage, study.stages)
        if stage_key is not None:
            return get_path(specs[stage.name], stage_key)
    return None


def _tuning_trials(
    setting: Setting,
    variant: Variant,
    cell: Cell,
    specs: Specs,
    tune: Tune,
    index: Index,
    fingerprint: Fingerprint,
) -> list[Trial]:
    """Return the trials of one variant with one combination, on the tuning seeds."""
    study = replace(setting.study, seeds=tune.seeds)
    as_baseline = replace(variant, name=BASELINE)  # tuning trials are not compared with a baseline
    trials = build_trials(study, [as_baseline], {BASELINE: specs}, {}, index, fingerprint)
    name = ", ".join(filter(None, (setting.label, f"{TUNING} {format_cell(cell)}")))
    return [replace(trial, variant=variant.name, setting=name) for trial in trials]


def tuned_setting(
    setting: Setting,
    untuned: Setting,
    tunings: Sequence[VariantTuning],
    index: Index,
    fingerprint: Fingerprint,
    flops_per_step: FlopsPerStep | None = None,
) -> Setting:
    """Return the setting in which every variant has its chosen values; without trials until the baseline has."""
    study, chosen = untuned.study, {tuning.variant: tuning for tuning in tunings if tuning.best is not None}
    setting = replace(
        setting,
        variants=untuned.variants,
        matched=untuned.matched,
        excluded=untuned.excluded,
        untimed=untuned.untimed,
    )
    if BASELINE not in chosen:
        return setting
    resolved = {
        variant.name: _chosen_specs(untuned, variant, chosen[variant.name], index, flops_per_step)
        for variant in untuned.variants
        if variant.name in chosen
    }
    base = lineage(study, resolved[BASELINE])
    duplicates = {name for name, specs in resolved.items() if name != BASELINE and lineage(study, specs) == base}
    remaining = [variant for variant in untuned.variants if variant.name not in duplicates]
    tuned = [variant for variant in remaining if variant.name in chosen]
    trials_by_variant: dict[tuple[str, str], list[Trial]] = {}
    trial_by_identity: dict[str, Trial] = {}
    for trial in build_trials(study, tuned, resolved, untuned.matched, index, fingerprint):
        matched_values = {**trial.matched_values, **_tuned_values(study, trial, chosen)}
        shared = trial_by_identity.setdefault(
            trial.identity, replace(trial, matched_values=matched_values, setting=setting.name)
        )
        trials_by_variant.setdefault((trial.variant, trial.stage), []).append(shared)
    reason = f"at its best it is the same spec as {BASELINE}"
    excluded = (Excluded(it.name, reason, BASELINE) for it in untuned.variants if it.name in duplicates)
    return replace(
        setting,
        variants=tuple(remaining),
        excluded=(*untuned.excluded, *excluded),
        trials={key: tuple(trials) for key, trials in trials_by_variant.items()},
    )


def _chosen_specs(
    untuned: Setting, variant: Variant, tuning: VariantTuning, index: Index, flops_per_step: FlopsPerStep | None
) -> Specs:
    cell = () if tuning.best == tuning.default else tuning.chosen or ()
    changes: list[Change] = [*matched_changes(untuned.study, untuned.matched, variant.name), *cell]
    return resolve_with_budget(untuned.study, variant, index, changes, flops_per_step)


def _tuned_values(study: Study, trial: Trial, chosen: Mapping[str, VariantTuning]) -> dict[str, Any]:
    """Return the tuned values of a trial that differ from the baseline's."""
    stage = next(stage for stage in study.stages if stage.name == trial.stage)
    baseline = dict(chosen[BASELINE].chosen or ())
    values = {
        key_in_stage(key, stage, study.stages): value
        for key, value in chosen[trial.variant].chosen or ()
        if value != baseline.get(key)
    }
    return {key: value for key, value in values.items() if key is not None}
