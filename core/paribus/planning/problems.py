"""Problems of a study besides those of its keys: of its match, its tuning, its metric and parts that no spec shows.

A plan reports all problems at once: parts of the study with reported problems are left out, and the rest is checked.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Final, final

from paribus.errors import ParibusError, Problem, SpecError, join_names
from paribus.planning.comparability import MetricNames, metric_problems, spec_problems
from paribus.planning.match_budget import matched_value
from paribus.planning.settings import Setting
from paribus.planning.variants import ResolvedVariants, Specs, resolve, resolve_variants
from paribus.registry import Index
from paribus.specs.tree import Keys, Tree, contains_unread
from paribus.specs.values import Validator
from paribus.storage.store import Trial
from paribus.studies.designs import BASELINE, PRODUCTS, READS, Conditions, Variant, listed_variants, one_at_a_time
from paribus.studies.parse_options import Tune
from paribus.studies.study import Study

WRONG_CONDITION: Final = ("unknown-axis", "never-applies")  # codes of conditions that no cell can meet
_LINE: Final = re.compile(r"(.*?):(\d+)")


@final
@dataclass(frozen=True)
class Draft:
    """Setting whose variants are resolved, with its problems; its trials are not built."""

    setting: Setting
    resolved: ResolvedVariants

    @property
    def problems(self) -> list[Problem]:
        """Problems of the setting, to which each step of planning adds."""
        return self.resolved.problems


def draft_setting(setting: Setting, index: Index, *, is_valid: bool) -> Draft:
    """Resolve the variants of a setting; in a study that is not valid, those that can be read."""
    study = setting.study
    variants = () if study.design else _readable_variants(study)
    draft = Draft(setting, resolve_variants(study, index, variants, resolve if is_valid else _resolve_readable))
    draft.problems.extend([*_match_problems(draft, index)])
    return draft


@contextmanager
def collect(problems: list[Problem]) -> Iterator[None]:
    """Add the problems of a `SpecError` to a list."""
    try:
        yield
    except SpecError as error:
        problems += error.problems


def in_file_order(study: Study, problems: Iterable[Problem]) -> list[Problem]:
    """Return each problem once, in the order of the file."""
    unique: dict[tuple[str, str, str, str], Problem] = {}
    for problem in problems:
        message = problem.message.partition(", in ")[0]  # without the name of a setting
        unique.setdefault((problem.code, problem.path, problem.location, message), problem)
    return sorted(unique.values(), key=lambda problem: _line(problem, study))


@contextmanager
def located(study: Study) -> Iterator[None]:
    """Give the line of its key in the base to each problem without one: what a component finds out by itself."""
    try:
        yield
    except ParibusError as error:
        raise type(error)(*(_with_location(problem, study) for problem in error.problems)) from error


def _with_location(problem: Problem, study: Study) -> Problem:
    keys = tuple(problem.path.split("."))
    is_of_base = not problem.location and keys[0] in study.base.data
    return replace(problem, location=study.base.location(keys)) if is_of_base else problem


def name_settings(drafts: Sequence[Draft]) -> Iterator[Problem]:
    """Yield the problems of all settings, and name the setting of a problem that not all of them have."""
    for draft in drafts:
        for problem in draft.problems:
            is_everywhere = all(problem in it.problems for it in drafts)
            message = problem.message if is_everywhere else f"{problem.message}, in {draft.setting.label}"
            yield replace(problem, message=message)


def merge_metric_problems(problems: Iterable[Problem]) -> list[Problem]:
    """Return the problems, of a metric without a valid name only one, which lists the names that could be measured."""
    all_problems = list(problems)
    at_metric = [problem for problem in all_problems if problem.path in ("metric", "metric.name")]
    unknown = [problem for problem in at_metric if problem.code == "unknown-metric"]
    if len(unknown) == len(at_metric):
        return all_problems
    valid = {"valid": unknown[0].valid} if unknown else {}
    return [
        replace(problem, **valid) if problem in at_metric else problem
        for problem in all_problems
        if problem not in unknown
    ]


def _line(problem: Problem, study: Study) -> tuple[int, int]:
    """Return a sort key by line; problems without a line of the study's file come last."""
    files = {match[1] for mark in study.marks.values() if (match := _LINE.match(mark))}
    match = _LINE.match(problem.location)
    return (0, int(match[2])) if match and match[1] in files else (1, 0)


def readable_part(study: Study, reported: Sequence[Problem]) -> Study:
    """Return the study without parts that would repeat a reported problem in every spec."""
    if not reported:
        return study
    stages = tuple(replace(stage, budget=_valid_budget(stage.budget)) for stage in study.stages)
    has_wrong_condition = any(problem.code in WRONG_CONDITION for problem in reported)
    varied = replace(study.varied, when={}) if has_wrong_condition else study.varied  # more cells, not fewer
    design = "" if varied.when and study.design not in PRODUCTS else study.design
    exclude = study.exclude if design in PRODUCTS else ()
    budget = _valid_budget(study.budget)
    return replace(study, design=design, varied=varied, budget=budget, stages=stages, exclude=exclude)


def _valid_budget(budget: Mapping[str, float]) -> Mapping[str, float]:
    """Return a budget in one unit that needs no count; otherwise an empty one."""
    return {} if len(budget) > 1 or "flops" in budget else budget


def _resolve_readable(study: Study, variant: Variant, index: Index, **options: Any) -> Specs:
    """Resolve a variant; raise an empty error for unreadable values, which are reported already."""
    specs = resolve(study, variant, index, **options)
    if contains_unread(specs):
        raise SpecError
    return specs


def _readable_variants(study: Study) -> list[Variant]:
    """Return the variants that can be read from a study without a valid design."""
    conditional: Conditions = study.varied.when
    axes = {key: values for key, values in study.varied.vary.items() if key not in conditional}
    axis_values = one_at_a_time(replace(study.varied, vary=axes))
    variants = [Variant(BASELINE), *axis_values, *listed_variants(study.varied), *study.varied.parts]
    return list({variant.name: variant for variant in variants}.values())


def _base_metric_problems(study: Study, index: Index) -> Iterator[Problem]:
    """Yield a problem for a metric of an objective that the base does not have, where no spec is valid."""
    data, metric = study.base.data, study.metric
    value = data.get("evaluate") or data.get("objective") or []
    nodes = value if isinstance(value, list) else [value]
    names = [node.get("name") if isinstance(node, Mapping) else node for node in nodes]
    is_plain = (
        names and not metric.stage and not data.get("measure") and all(it in index.names("objective") for it in names)
    )
    if is_plain and metric.name and metric.name.split("/")[1] not in names:
        spec = {"objective": [{"name": name} for name in names], "evaluate": None}
        terms = [f"val/{name}/{term}" for name in names for term in index.find("objective", str(name)).terms]
        trials = {BASELINE: Trial("", BASELINE, 0, spec, {}, "", "")}
        yield from metric_problems(study, trials, index, lambda spec: terms)


def _match_problems(draft: Draft, index: Index) -> Iterator[Problem]:
    """Yield the problem of a `match.by` that is not a number in every variant, or no option at all."""
    study = draft.setting.study
    if study.match is None or not study.match.by:
        return
    key = study.match.by
    varied_names = {name for axis in study.varied.vary for name in axis.split(".")}
    # Without a valid variant, the baseline shows the problem, unless the option belongs to a value that is varied.
    if not draft.resolved.resolved.keys() - {BASELINE} and key.partition(".")[0] not in varied_names:
        location = study.location(("match", "by"))
        for problem in _new_problems(draft, Variant(BASELINE), index, key, 1):
            if problem.path == key and problem.code == "unknown-key":
                yield replace(problem, location=location)
    for name, specs in draft.resolved.resolved.items():
        if name != BASELINE:
            try:
                matched_value(specs[study.metric.stage], key, study)
            except SpecError as error:
                yield from error.problems
                return


def tuning_problems(draft: Draft, tune: Tune | None, index: Index) -> list[Problem]:
    """Return the problems of each tuning value in the baseline."""
    baseline = draft.resolved.variants.get(BASELINE, Variant(BASELINE))
    cells = [(key, value) for key, values in tune.values.items() for value in values] if tune else []
    return [problem for key, value in cells for problem in _new_problems(draft, baseline, index, key, value)]


def _new_problems(draft: Draft, variant: Variant, index: Index, key: str, value: Any) -> list[Problem]:
    """Return the problems that a value adds to a variant."""
    try:
        resolve(draft.setting.study, variant, index, [(key, value)])
    except ParibusError as error:
        return [problem for problem in error.problems if problem not in draft.problems]
    return []


def draft_comparability_problems(draft: Draft, index: Index, metric_names: MetricNames) -> Iterator[Problem]:
    """Yield the problems of comparing a draft's variants, as far as their specs show them."""
    study, variants = draft.setting.study, draft.resolved.variants
    for metric in study.metrics:
        trials = {
            name: Trial("", name, 0, specs[metric.stage], dict(variants[name].changes), "", "")
            for name, specs in draft.resolved.resolved.items()
        }
        if BASELINE in trials:
            yield from spec_problems(replace(study, metric=metric), trials, index, metric_names)
        else:
            yield from _base_metric_problems(study, index)


def no_variant_problems(study: Study, settings: Iterable[Setting]) -> Iterator[Problem]:
    """Yield the problem of a study whose variants are all excluded, in every setting."""
    settings = list(settings)
    excluded = [it for setting in settings for it in setting.excluded]
    if not excluded or any(variant.name != BASELINE for setting in settings for variant in setting.variants):
        return
    reasons = [f"{it.variant} equals {it.same_as}" if it.same_as else f"{it.variant}: {it.reason}" for it in excluded]
    path = next((key for key in READS[study.design] if getattr(study.varied, key)), "vary")
    yield Problem(
        code="empty",
        path=path,
        location=study.location((path,)),
        message=f"no variant is left to compare: {join_names(dict.fromkeys(reasons), 3)}",
        valid="a value that the baseline does not have",
    )


def component_problems(study: Study, index: Index) -> Iterator[Problem]:
    """Yield the problems of components that no spec shows, in a study without a base or without a valid design."""
    axes = study.varied.vary if not study.base.data else study.varied.when if not study.design else ()
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
