"""All problems of a study at once: those of its own keys, and those of every spec that it would run.

This runs only after a problem was found. A valid study is planned without it.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, Final

from paribus.errors import ParibusError, Problem, SpecError
from paribus.planning.comparability import MetricNames, condition_problems, metric_problems
from paribus.planning.match_budget import matched_value
from paribus.planning.plan import check_trial_count
from paribus.planning.settings import Setting, expand_settings
from paribus.planning.variants import ResolvedVariants, Specs, resolve, resolve_variants
from paribus.registry import Index
from paribus.specs.tree import Keys, Tree, contains_unread
from paribus.specs.values import Validator
from paribus.storage.store import Trial
from paribus.studies.budgets import BUDGETS, WHOLE
from paribus.studies.conditions import Conditions
from paribus.studies.designs import BASELINE, PRODUCTS, Variant, listed_variants, one_at_a_time
from paribus.studies.study import METRIC, Study

WRONG_CONDITION: Final = ("unknown-axis", "never-applies")  # codes of conditions that no cell can meet
_LINE: Final = re.compile(r"(.*?):(\d+)")


def collect_problems(
    study: Study, index: Index, reported: Sequence[Problem], *, max_trials: int, metric_names: MetricNames
) -> tuple[Problem, ...]:
    """Return the reported problems and all others, in the order of the file."""
    problems = [*_find_problems(_without_reported(study, reported), index, max_trials, metric_names), *reported]
    unique: dict[tuple[str, str, str, str], Problem] = {}
    for problem in problems:
        message = problem.message.partition(", in ")[0]  # without the name of a setting
        unique.setdefault((problem.code, problem.path, problem.location, message), problem)
    return tuple(sorted(unique.values(), key=lambda problem: _line(problem, study)))


def _line(problem: Problem, study: Study) -> tuple[int, int]:
    """Return a sort key by line; problems without a line of the study's file come last."""
    files = {match[1] for mark in study.marks.values() if (match := _LINE.match(mark))}
    match = _LINE.match(problem.location)
    return (0, int(match[2])) if match and match[1] in files else (1, 0)


def _without_reported(study: Study, reported: Sequence[Problem]) -> Study:
    """Return the study without parts that would repeat a reported problem in every spec."""
    stages = tuple(replace(stage, budget=_valid_budget(stage.budget)) for stage in study.stages)
    has_wrong_condition = any(problem.code in WRONG_CONDITION for problem in reported)
    varied = replace(study.varied, when={}) if has_wrong_condition else study.varied  # more cells, not fewer
    design = "" if varied.when and study.design not in PRODUCTS else study.design
    exclude = study.exclude if design in PRODUCTS else ()
    budget = _valid_budget(study.budget)
    return replace(study, design=design, varied=varied, budget=budget, stages=stages, exclude=exclude)


def _valid_budget(budget: Mapping[str, Any]) -> Mapping[str, float]:
    """Return a budget that is valid and needs no count; otherwise an empty one."""
    if len(budget) != 1:
        return {}
    ((unit, amount),) = budget.items()
    types = (int,) if unit in WHOLE else (int, float)
    is_valid = unit in BUDGETS and unit != "flops" and type(amount) in types and amount > 0
    return budget if is_valid else {}


def _find_problems(study: Study, index: Index, max_trials: int, metric_names: MetricNames) -> Iterator[Problem]:
    if not study.base.data:
        yield from _component_problems(study, index, study.varied.vary)
        return
    if not study.design:
        yield from _component_problems(study, index, study.varied.when)
    else:
        try:
            check_trial_count(study, max_trials)
        except SpecError as error:
            yield from error.problems
            return
    settings = [setting for setting in expand_settings(study) if not setting.tuned]
    by_setting = [list(_setting_problems(setting, study, index, metric_names)) for setting in settings]
    for setting, problems in zip(settings, by_setting, strict=True):
        for problem in problems:
            is_everywhere = all(problem in others for others in by_setting)
            yield problem if is_everywhere else replace(problem, message=f"{problem.message}, in {setting.label}")


def _setting_problems(setting: Setting, whole: Study, index: Index, metric_names: MetricNames) -> Iterator[Problem]:
    """Yield the problems of one setting: of its variants, its conditions, its match and its tuning."""
    study = setting.study
    result = resolve_variants(study, index, () if study.design else _listed_variants(study), _resolve_readable)
    yield from result.problems
    stage = study.metric.stage
    trials = {
        name: Trial("", name, 0, specs[stage], dict(result.variants[name].changes), "", "")
        for name, specs in result.resolved.items()
    }
    if BASELINE in trials:
        yield from condition_problems(study, trials)
        with suppress(ParibusError):  # a component that cannot be built is reported where it is built
            yield from list(metric_problems(study, trials, index, metric_names))
    else:
        yield from _metric_problems_without_specs(study, index)
    yield from _match_problems(study, index, result)
    yield from _tuning_problems(study, whole, index, result)


def _resolve_readable(study: Study, variant: Variant, index: Index, **options: Any) -> Specs:
    """Resolve a variant; raise an empty error for unreadable values, which are reported already."""
    specs = resolve(study, variant, index, **options)
    if contains_unread(specs):
        raise SpecError
    return specs


def _listed_variants(study: Study) -> list[Variant]:
    """Return the variants that can be read from a study without a valid design."""
    conditional: Conditions = study.varied.when
    axes = {key: values for key, values in study.varied.vary.items() if key not in conditional}
    axis_values = one_at_a_time(replace(study.varied, vary=axes))
    variants = [Variant(BASELINE), *axis_values, *listed_variants(study.varied), *study.varied.parts]
    return list({variant.name: variant for variant in variants}.values())


def _metric_problems_without_specs(study: Study, index: Index) -> Iterator[Problem]:
    """Yield a problem for a metric of an objective that the base does not have, where no spec is valid."""
    data, metric = study.base.data, study.metric
    value = data.get("evaluate") or data.get("objective") or []
    nodes = value if isinstance(value, list) else [value]
    names = [node.get("name") if isinstance(node, Mapping) else node for node in nodes]
    is_plain = not metric.stage and not data.get("measure") and all(it in index.names("objective") for it in names)
    if is_plain and METRIC.fullmatch(metric.name) and metric.name.split("/")[1] not in names:
        spec = {"objective": [{"name": name} for name in names], "evaluate": None}
        terms = [f"val/{name}/{term}" for name in names for term in index.find("objective", str(name)).terms]
        trials = {BASELINE: Trial("", BASELINE, 0, spec, {}, "", "")}
        yield from metric_problems(study, trials, index, lambda spec: terms)


def _match_problems(study: Study, index: Index, result: ResolvedVariants) -> Iterator[Problem]:
    """Yield a problem for a `match.by` that is not a number in every variant, or no option at all."""
    if study.match is None or study.match.by == "None":
        return
    key = study.match.by
    if not result.resolved:
        location = study.location(("match", "by"))
        for problem in _new_problems(study, Variant(BASELINE), index, key, 1, result):
            if problem.path == key and problem.code == "unknown-key":
                yield replace(problem, location=location)
    for specs in result.resolved.values():
        try:
            matched_value(specs[study.metric.stage], key, study)
        except SpecError as error:
            yield from error.problems
            return


def _tuning_problems(study: Study, whole: Study, index: Index, result: ResolvedVariants) -> Iterator[Problem]:
    """Yield the problems of each tuning value in the baseline."""
    baseline = result.variants.get(BASELINE, Variant(BASELINE))
    for key, values in whole.tune.values.items() if whole.tune is not None else ():
        for value in values:
            yield from _new_problems(study, baseline, index, key, value, result)


def _new_problems(
    study: Study, variant: Variant, index: Index, key: str, value: Any, result: ResolvedVariants
) -> list[Problem]:
    """Return the problems that a value adds to a variant."""
    try:
        resolve(study, variant, index, [(key, value)])
    except ParibusError as error:
        return [problem for problem in error.problems if problem not in result.problems]
    return []


def _component_problems(study: Study, index: Index, axes: Collection[str]) -> Iterator[Problem]:
    """Yield the problems of components that can be checked without a base."""
    for keys, slot, value in _varied_components(study, index, axes):
        validator = Validator(Tree({}, dict(study.marks)), index)
        validator.read_component(slot, value, keys, {})
        yield from validator.problems


def _varied_components(study: Study, index: Index, axes: Collection[str]) -> Iterator[tuple[Keys, str, Any]]:
    def is_component(key: str, value: Any) -> bool:
        return key in index.entries and isinstance(value, (str, Mapping))

    for key in axes:
        for place, value in enumerate(study.varied.vary[key]):
            if is_component(key, value):
                yield ("vary", key, place), key, value
    if not study.base.data:
        for section, mappings in (("variants", study.varied.variants), ("changes", study.varied.changes)):
            for place, mapping in enumerate(mappings):
                for key, value in mapping.items():
                    if is_component(key, value):
                        yield (section, place, key), key, value
