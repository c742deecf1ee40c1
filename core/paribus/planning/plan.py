"""A plan: every trial of a study, resolved, named and matched, before any of them runs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Final, final

from paribus.errors import Problem, SpecError
from paribus.planning.identity import ComponentCode, identity_of
from paribus.planning.match_budget import (
    Count,
    FindTimeMatch,
    has_flops_budget,
    match_variants,
    resolve_with_budget,
    untimed_trials,
)
from paribus.planning.match_search import BudgetMatch
from paribus.planning.settings import Excluded, Setting, expand_settings, trials_per_variant
from paribus.planning.tuning import Score, VariantTuning, tune_variants, tuned_setting
from paribus.planning.variants import Fingerprint, Spec, Specs, build_trials, matched_changes, resolve_variants
from paribus.registry import Index
from paribus.storage.store import Trial
from paribus.studies.budgets import FlopsPerStep
from paribus.studies.designs import Variant, describe_axes, variant_count
from paribus.studies.options import TIME
from paribus.studies.study import Study

MAX_TRIALS: Final = 10_000


Counter = Callable[[Study], Count]  # what a study that matches counts with


@final
@dataclass(frozen=True)
class Plan:
    """What a study comes to."""

    study: Study
    settings: tuple[Setting, ...]  # one, without a name, of a plain study
    trials: tuple[Trial, ...]  # seed by seed, so that an early stop leaves whole pairs; each once
    tuned: tuple[VariantTuning, ...] = ()  # what is tried with each variant, and what was chosen; its trials come first

    @property
    def variants(self) -> tuple[Variant, ...]:
        """Those of any setting, the baseline first."""
        return tuple({each.name: each for setting in self.settings for each in setting.variants}.values())

    @property
    def excluded(self) -> tuple[Excluded, ...]:
        """The cells that do not run; where only some settings are without one, they are named."""
        every = [setting.excluded for setting in self.settings]
        several = [
            each
            if all(each in found for found in every)
            else Excluded(each.variant, f"{each.reason}, in {setting.name}")
            for setting in self.settings
            for each in setting.excluded
        ]
        return tuple(dict.fromkeys(several))

    @property
    def matched(self) -> Mapping[str, BudgetMatch]:
        """The knobs that were turned in the first setting."""
        return self.settings[0].matched

    @property
    def is_complete(self) -> bool:
        """Whether all trials are known: not before what is matched on time was timed, and what is tuned was tuned."""
        return not any(each.untimed for each in self.settings) and all(each.best is not None for each in self.tuned)

    @cached_property
    def trial_by_identity(self) -> Mapping[str, Trial]:
        """Each trial by its identity."""
        return {trial.identity: trial for trial in self.trials}

    def setting(self, name: str | None = None) -> Setting:
        """The setting of this name; the first, unless one is named."""
        return self.settings[0] if name is None else next(each for each in self.settings if each.name == name)

    def trials_of(self, variant: str, stage: str | None = None, setting: str | None = None) -> tuple[Trial, ...]:
        """A variant's trials of a stage, which is that of the metric unless another is named."""
        return self.setting(setting).trials_of(variant, stage)

    def new_trials(self, variant: str, stage: str, setting: str | None = None) -> tuple[Trial, ...]:
        """Those of them that no variant before this one has as well, and no setting before."""
        trials = self.trials_of(variant, stage, setting)
        return tuple(
            trial for trial in trials if trial.variant == variant and self.trial_by_identity[trial.identity] is trial
        )


def plan(
    study: Study,
    index: Index,
    *,
    fingerprint: Fingerprint,
    count: Count | None = None,
    most: int = MAX_TRIALS,
    solved: FindTimeMatch | None = None,
    counter: Counter | None = None,
    score: Score = lambda trial: None,
    spend: FlopsPerStep | None = None,
) -> Plan:
    """Every trial, or one error that names what no variant can be.

    `count` is only asked where the study matches, and `spend` where its budget is one of operations. `solved` is what
    was found by measuring, of a study that matches on time.

    `counter` makes a `count` for each setting that matches, and `score` says what came of the trials by which the study
    is tuned: what follows from them is planned as soon as they have records.
    """
    check_trial_count(study, most)
    settings: list[Setting] = []
    tuned: list[VariantTuning] = []
    for setting in expand_settings(study):
        if setting.tuned:
            assert study.tune is not None
            found = list(tune_variants(settings[-1], study.tune, index, fingerprint, score, spend))
            settings.append(tuned_setting(setting, settings[-1], found, index, fingerprint, spend))
            tuned += found
            continue
        match = setting.study.match
        counting = counter(setting.study) if counter and match is not None and match.on != TIME else count
        try:
            settings.append(_held(setting, index, fingerprint, counting, solved, spend))
        except SpecError as error:
            raise SpecError(*(_said_of(setting, problem) for problem in error.problems)) from error
    return Plan(study, tuple(settings), tuple(_in_order(study, settings, tuned)), tuple(tuned))


def _said_of(setting: Setting, problem: Problem) -> Problem:
    return replace(problem, message=f"{problem.message}, in {setting.label}") if setting.label else problem


def _in_order(study: Study, settings: Sequence[Setting], tuned: Iterable[VariantTuning]) -> Iterable[Trial]:
    """Every trial once: first what is tuned, then seed by seed those of all settings."""
    place = {seed: number for number, seed in enumerate(study.seeds)}
    first: dict[str, Trial] = {}
    for trial in (trial for each in tuned for trial in each.trials):
        first.setdefault(trial.identity, trial)
    held = [trial for setting in settings for each in setting.trials.values() for trial in each]
    order = {stage.name: number for number, stage in enumerate(study.stages)}
    for trial in sorted(held, key=lambda trial: (place[trial.seed], order[trial.stage])):
        first.setdefault(trial.identity, trial)
    return first.values()


def _held(
    setting: Setting,
    index: Index,
    fingerprint: Fingerprint,
    count: Count | None,
    solved: FindTimeMatch | None,
    spend: FlopsPerStep | None,
) -> Setting:
    """One setting with all that it comes to, as its variants are written."""
    study = setting.study
    found = resolve_variants(study, index)
    if found.problems:
        raise SpecError(*found.problems)
    kept, resolved = found.variants, found.resolved
    matched = match_variants(study, kept, resolved, index, count, solved)
    _spent(study, kept, resolved, matched, index, spend)
    every = build_trials(study, tuple(kept.values()), resolved, matched, index, fingerprint, found.canonical)
    untimed = untimed_trials(study, matched, every)
    there = [trial for trial in every if trial.variant not in untimed]
    first: dict[str, Trial] = {}
    for trial in there:
        first.setdefault(trial.identity, replace(trial, setting=setting.name) if setting.name else trial)
    through: dict[tuple[str, str], list[Trial]] = {}
    for trial in there:
        through.setdefault((trial.variant, trial.stage), []).append(first[trial.identity])
    return replace(
        setting,
        variants=tuple(kept.values()),
        excluded=tuple(found.excluded),
        matched=matched,
        trials={key: tuple(found) for key, found in through.items()},
        untimed=untimed,
    )


def check_trial_count(study: Study, most: int) -> None:
    """Refuses a study of more trials than anybody meant."""
    times, more = trials_per_variant(study)
    count = (variant_count(study.design, study.varied) + 1) * times * len(study.stages)
    if count > most:
        axes = describe_axes(study.varied)
        axes += f" x stages: {len(study.stages)}" if len(study.stages) > 1 else ""
        axes += more
        raise SpecError(
            Problem(
                code="too-many-trials",
                path="vary",
                location=study.location(("vary",)),
                message=f"this is {count:,} trials ({axes} x seeds: {len(study.seeds)})",
                valid=f"at most {most:,}, or --max-trials",
            )
        )


def _spent(
    study: Study,
    kept: Mapping[str, Variant],
    resolved: dict[str, Specs],
    matched: Mapping[str, BudgetMatch],
    index: Index,
    spend: FlopsPerStep | None,
) -> None:
    """Gives each variant the steps that a budget of operations is worth; `resolved` is changed in place."""
    if has_flops_budget(study):
        for name, variant in kept.items():
            resolved[name] = resolve_with_budget(study, variant, index, matched_changes(study, matched, name), spend)


def single_trial(spec: Spec, index: Index, fingerprint: Fingerprint) -> Trial:
    """A spec by itself, as a trial of no study."""
    code, corpus = ComponentCode(index).hash(spec), fingerprint(dict(spec))
    return Trial(identity_of(spec, code, corpus), "alone", spec["seed"], spec, {}, code, corpus)
