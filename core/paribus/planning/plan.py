"""Plan of a study: every trial, resolved, named and matched, before any of them runs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Final, final

from paribus.errors import Problem, SpecError
from paribus.planning.comparability import EvaluationPreview, comparability_problems
from paribus.planning.identity import ComponentCode, identity_of
from paribus.planning.match_budget import (
    Count,
    FindTimeMatch,
    has_flops_budget,
    match_variants,
    resolve_with_budget,
    untimed_trials,
)
from paribus.planning.problems import (
    Draft,
    collect,
    component_problems,
    draft_comparability_problems,
    draft_setting,
    in_file_order,
    located,
    merge_metric_problems,
    name_settings,
    no_variant_problems,
    readable_part,
    tuning_problems,
)
from paribus.planning.settings import BudgetMatch, Excluded, Setting, expand_settings, trials_per_variant
from paribus.planning.tuning import Score, VariantTuning, format_cell, tune_variants, tuned_setting
from paribus.planning.variants import (
    Fingerprint,
    ResolvedVariants,
    Spec,
    build_trials,
    matched_changes,
)
from paribus.planning.worth import BaselineCurve, baseline_curves
from paribus.registry import Index
from paribus.storage.store import Trial
from paribus.studies.budgets import FlopsPerStep
from paribus.studies.designs import Variant, describe_axes, variant_count
from paribus.studies.study import Study
from paribus.studies.study_keys import TIME

MAX_TRIALS: Final = 10_000

MakeCount = Callable[[Study], Count]  # the count of a study with a match


@final
@dataclass(frozen=True)
class Plan:
    """The settings and trials of a study."""

    study: Study
    settings: tuple[Setting, ...]  # a plain study has one, without a name
    trials: tuple[Trial, ...]  # each once, seed by seed, so that an early stop leaves complete pairs
    tuned: tuple[VariantTuning, ...] = ()  # the tuning trials come first
    curves: tuple[BaselineCurve, ...] = ()  # of the baseline at other budgets, in a study with `worth`

    @property
    def variants(self) -> tuple[Variant, ...]:
        """Variants of all settings, the baseline first."""
        return tuple({variant.name: variant for setting in self.settings for variant in setting.variants}.values())

    @property
    def excluded(self) -> tuple[Excluded, ...]:
        """Excluded variants of all settings; the setting is named where not all of them exclude the variant."""
        by_setting = [setting.excluded for setting in self.settings]
        excluded: list[Excluded] = []
        for setting in self.settings:
            for item in setting.excluded:
                is_everywhere = all(item in items for items in by_setting)
                named = Excluded(item.variant, f"{item.reason}, in {setting.name}")
                excluded.append(item if is_everywhere else named)
        return tuple(dict.fromkeys(excluded))

    @property
    def matched(self) -> Mapping[str, BudgetMatch]:
        """Matches of the first setting by variant."""
        return self.settings[0].matched

    @property
    def is_complete(self) -> bool:
        """True when all trials are known: matches on time are measured, and tuning has ended."""
        has_untimed = any(setting.untimed for setting in self.settings)
        return not has_untimed and all(tuning.best is not None for tuning in self.tuned)

    @cached_property
    def trial_by_identity(self) -> Mapping[str, Trial]:
        """Trials by identity."""
        return {trial.identity: trial for trial in self.trials}

    def setting(self, name: str | None = None) -> Setting:
        """Return the setting of this name; the first by default."""
        return self.settings[0] if name is None else next(it for it in self.settings if it.name == name)

    def trials_of(self, variant: str, stage: str | None = None, setting: str | None = None) -> tuple[Trial, ...]:
        """Return a variant's trials of a stage; by default the stage of the metric."""
        return self.setting(setting).trials_of(variant, stage)

    def new_trials(self, variant: str, stage: str, setting: str | None = None) -> tuple[Trial, ...]:
        """Return a variant's trials that no earlier variant or setting has."""
        trials = self.trials_of(variant, stage, setting)
        known = self.trial_by_identity
        return tuple(trial for trial in trials if trial.variant == variant and known[trial.identity] is trial)


def plan(
    study: Study,
    index: Index,
    *,
    fingerprint: Fingerprint,
    max_trials: int = MAX_TRIALS,
    find_time_match: FindTimeMatch | None = None,
    make_count: MakeCount | None = None,
    score: Score = lambda trial: None,
    flops_per_step: FlopsPerStep | None = None,
    preview: EvaluationPreview | None = None,
    reported: Sequence[Problem] = (),
) -> Plan:
    """Return every trial, or raise one error with all problems of the study.

    Args:
        fingerprint: digest of the corpus of a resolved spec
        max_trials: limit of the number of trials
        find_time_match: measured matches of a study that matches on time
        make_count: cost of a resolved spec, for a study with a match
        score: results of tuning trials; the trials that follow from them are planned when they have records
        flops_per_step: training FLOPs of a step, for a budget of FLOPs
        preview: for the comparability of the variants, which is not checked without it
        reported: problems of the study's keys; then the rest is checked, and no trial is built
    """
    whole, study = study, readable_part(study, reported)
    problems = [*component_problems(study, index)] if study.program is None else []
    is_readable = bool(study.base.data) or not reported
    too_many = trial_count_problems(study, max_trials) if is_readable and study.design else []
    drafts: list[Draft] = []
    settings: list[Setting] = []
    tunings: list[VariantTuning] = []

    def has_problems() -> bool:
        return bool(reported or problems or too_many or any(draft.problems for draft in drafts))

    for setting in expand_settings(study) if is_readable and not too_many else ():
        if not setting.tuned:
            draft = draft_setting(setting, index, is_valid=not reported)
            if not reported and not draft.problems:
                with collect(draft.problems), located(study):
                    count = make_count(setting.study) if make_count and _is_counted(setting) else None
                    settings.append(_plan_setting(draft, index, fingerprint, count, find_time_match, flops_per_step))
            draft.problems.extend(tuning_problems(draft, study.tune, index) if study.base.data else ())
            drafts.append(draft)
        elif study.tune is not None and not has_problems():
            with collect(problems):
                untuned = settings[-1]
                new = list(tune_variants(untuned, study.tune, index, fingerprint, score, flops_per_step))
                settings.append(tuned_setting(setting, untuned, new, index, fingerprint, flops_per_step))
                tunings += new
    if not has_problems():
        problems += no_variant_problems(study, settings)
    if preview is not None:
        if has_problems():
            for draft in drafts:
                draft.problems.extend(draft_comparability_problems(draft, index, preview.metric_names))
        else:
            for draft, setting in zip(drafts, (it for it in settings if not it.tuned), strict=True):
                for metric in study.metrics:
                    of_task = replace(setting, study=replace(setting.study, metric=metric))
                    trials = _compared_trials(of_task, tunings)
                    draft.problems.extend(comparability_problems(of_task.study, trials, index, preview))
    if has_problems():
        found = merge_metric_problems([*problems, *too_many, *name_settings(drafts), *reported])
        raise SpecError(*in_file_order(whole, found))
    curves = baseline_curves(settings, tunings, index, fingerprint, flops_per_step)
    return Plan(study, tuple(settings), tuple(_sort_trials(study, settings, tunings, curves)), tuple(tunings), curves)


def _is_counted(setting: Setting) -> bool:
    """Return whether the cost of a setting is counted, and not measured."""
    match = setting.study.match
    return match is not None and match.on != TIME


def _compared_trials(setting: Setting, tunings: Iterable[VariantTuning]) -> dict[str, Trial]:
    """Return a trial of each variant of a setting, and of each of its tuning candidates."""
    names = [variant.name for variant in setting.variants]
    trials = {name: setting.untimed.get(name) or setting.trials_of(name)[0] for name in names}
    for tuning in tunings:
        if tuning.setting == setting.name:
            for candidate in tuning.candidates:
                trials[f"{tuning.variant} with {format_cell(candidate.cell)}"] = candidate.trials[0]
    return trials


def _sort_trials(
    study: Study, settings: Sequence[Setting], tunings: Iterable[VariantTuning], curves: Iterable[BaselineCurve]
) -> Iterable[Trial]:
    """Return every trial once: first those of tuning, then those of all settings and budgets seed by seed."""
    trial_by_identity: dict[str, Trial] = {}
    for tuning in tunings:
        for trial in tuning.trials:
            trial_by_identity.setdefault(trial.identity, trial)
    trials = [trial for setting in settings for trials in setting.trials.values() for trial in trials]
    trials += [trial for curve in curves for trials in curve.trials.values() for trial in trials]
    seed_order = {seed: index for index, seed in enumerate(study.seeds)}
    stage_order = {stage.name: index for index, stage in enumerate(study.stages)}
    for trial in sorted(trials, key=lambda trial: (seed_order[trial.seed], stage_order[trial.stage])):
        trial_by_identity.setdefault(trial.identity, trial)
    return trial_by_identity.values()


def _plan_setting(
    draft: Draft,
    index: Index,
    fingerprint: Fingerprint,
    count: Count | None,
    find_time_match: FindTimeMatch | None,
    flops_per_step: FlopsPerStep | None,
) -> Setting:
    """Return a setting with its variants and trials."""
    setting, result = draft.setting, draft.resolved
    study = setting.study
    matched = match_variants(study, result.variants, result.resolved, index, count, find_time_match)
    _apply_flops_budget(study, result, matched, index, flops_per_step)
    variants = tuple(result.variants.values())
    trials = build_trials(study, variants, result.resolved, matched, index, fingerprint, result.canonical)
    untimed = untimed_trials(study, matched, trials)
    trial_by_identity: dict[str, Trial] = {}
    trials_by_variant: dict[tuple[str, str], list[Trial]] = {}
    for trial in trials:
        if trial.variant not in untimed:
            named = replace(trial, setting=setting.name) if setting.name else trial
            shared = trial_by_identity.setdefault(trial.identity, named)
            trials_by_variant.setdefault((trial.variant, trial.stage), []).append(shared)
    return replace(
        setting,
        variants=variants,
        excluded=tuple(result.excluded),
        matched=matched,
        trials={key: tuple(trials) for key, trials in trials_by_variant.items()},
        untimed=untimed,
    )


def trial_count_problems(study: Study, max_trials: int) -> list[Problem]:
    """Return the problem of a study with more than `max_trials` trials."""
    trials, factors = trials_per_variant(study)
    budgets = 0 if study.worth is None else len(study.worth.factors) - 1
    count = (variant_count(study.design, study.varied) + 1 + budgets) * trials * len(study.stages)
    if count <= max_trials:
        return []
    axes = describe_axes(study.varied)
    axes += f" x stages: {len(study.stages)}" if len(study.stages) > 1 else ""
    axes += factors
    message = f"this is {count:,} trials ({axes} x seeds: {len(study.seeds)})"
    valid = f"at most {max_trials:,}, or --max-trials"
    location = study.location(("vary",))
    return [Problem(code="too-many-trials", path="vary", location=location, message=message, valid=valid)]


def _apply_flops_budget(
    study: Study,
    result: ResolvedVariants,
    matched: Mapping[str, BudgetMatch],
    index: Index,
    flops_per_step: FlopsPerStep | None,
) -> None:
    """Replace the specs of all variants by those with the steps that a budget of FLOPs pays for."""
    if has_flops_budget(study):
        for name, variant in result.variants.items():
            changes = matched_changes(study, matched, name)
            result.resolved[name] = resolve_with_budget(study, variant, index, changes, flops_per_step)


def single_trial(spec: Spec, index: Index, fingerprint: Fingerprint) -> Trial:
    """Return the trial of a spec outside of a study."""
    hashes, corpus = ComponentCode(index), fingerprint(dict(spec))
    code, components = hashes.hash(spec), hashes.components(spec)
    identity = identity_of(spec, code, corpus)
    plugins = hashes.plugins(spec)
    return Trial(identity, "alone", spec["seed"], spec, {}, code, corpus, components=components, plugins=plugins)


def first_step(trial: Trial) -> Trial:
    """Return the trial with one step and one validation batch, without its parent."""
    spec: dict[str, Any] = dict(trial.spec)
    if trial.parent_id:
        vocabulary = {key: value for key, value in spec["from"].items() if key == "learned"}
        spec["from"] = vocabulary or None
    trainer = {key: value for key, value in (spec["trainer"] or {}).items() if key != "max_time"}
    spec["trainer"] = {**trainer, "max_steps": 1}
    spec["data"] = {**spec["data"], "validation": spec["data"]["batch"]}
    return replace(trial, spec=spec, parent_id="")
