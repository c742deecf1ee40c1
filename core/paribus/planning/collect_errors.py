"""Everything that is wrong with a study, told at once: what its own keys say, and what every spec of it would be.

Asked only once something is known to be wrong: a study that is right is planned, and never comes here.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
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

UNCONDITIONED: Final = ("no-axis", "never-applies")  # a condition that no cell can be asked for
_LINE: Final = re.compile(r"(.*?):(\d+)")


def collect_problems(
    study: Study, index: Index, told: Sequence[Problem], *, most: int, measured: MetricNames
) -> tuple[Problem, ...]:
    """What was told already with whatever else there is, in the order of the file."""
    found = [*_further(_sound(study, told), index, most, measured), *told]
    once: dict[tuple[str, str, str, str], Problem] = {}
    for problem in found:
        what = problem.message.partition(", in ")[0]  # the setting in which it was found first
        once.setdefault((problem.code, problem.path, problem.location, what), problem)
    return tuple(sorted(once.values(), key=lambda problem: _line(problem, study)))


def _line(problem: Problem, study: Study) -> tuple[int, int]:
    """Where it stands; last what stands in no place of this file."""
    here = {found[1] for mark in study.marks.values() if (found := _LINE.match(mark))}
    at = _LINE.match(problem.location)
    return (0, int(at[2])) if at and at[1] in here else (1, 0)


def _sound(study: Study, told: Sequence[Problem]) -> Study:
    """Without what was told to be wrong and would be told again in every spec; no design, where there are no cells."""
    stages = tuple(replace(stage, budget=_budget(stage.budget)) for stage in study.stages)
    broken = any(problem.code in UNCONDITIONED for problem in told)
    varied = replace(study.varied, when={}) if broken else study.varied  # then there are more cells, not fewer
    design = "" if varied.when and study.design not in PRODUCTS else study.design
    exclude = study.exclude if design in PRODUCTS else ()
    budget = _budget(study.budget)
    return replace(study, design=design, varied=varied, budget=budget, stages=stages, exclude=exclude)


def _budget(budget: Mapping[str, Any]) -> Mapping[str, float]:
    """A budget, if it is one of steps or tokens that could be."""
    whole = {key: value for key, value in budget.items() if key in BUDGETS}
    fine = all(type(value) is int and value > 0 if key in WHOLE else type(value) in (int, float) and value > 0
               for key, value in whole.items())  # fmt: skip
    return {} if len(whole) != 1 or len(budget) != 1 or not fine or "flops" in whole else whole


def _further(study: Study, index: Index, most: int, measured: MetricNames) -> Iterator[Problem]:
    if not study.base.data:
        yield from _alone(study, index, study.varied.vary)
        return
    if not study.design:
        yield from _alone(study, index, study.varied.when)
    else:
        try:
            check_trial_count(study, most)
        except SpecError as error:
            yield from error.problems
            return
    settings = [setting for setting in expand_settings(study) if not setting.tuned]
    every = [list(_in(setting, study, index, measured)) for setting in settings]
    for setting, problems in zip(settings, every, strict=True):
        for problem in problems:
            alike = all(problem in others for others in every)
            yield problem if alike else replace(problem, message=f"{problem.message}, in {setting.label}")


def _in(setting: Setting, whole: Study, index: Index, measured: MetricNames) -> Iterator[Problem]:
    """What is wrong in one setting: its variants, what all of them must share, its knob, and what is tuned."""
    study = setting.study
    found = resolve_variants(study, index, () if study.design else _written(study), _readable)
    yield from found.problems
    stage = study.metric.stage
    trials = {
        name: Trial("", name, 0, specs[stage], dict(found.variants[name].changes), "", "")
        for name, specs in found.resolved.items()
    }
    if BASELINE in trials:
        yield from condition_problems(study, trials)
        yield from _known(lambda: list(metric_problems(study, trials, index, measured)))
    else:
        yield from _unmeasured(study, index)
    yield from _knob(study, index, found)
    yield from _tuned(study, whole, index, found)


def _readable(study: Study, variant: Variant, index: Index, **more: Any) -> Specs:
    """The specs of a variant, of which nothing more is said where a value in them could not be read: that was told."""
    specs = resolve(study, variant, index, **more)
    if contains_unread(specs):
        raise SpecError
    return specs


def _written(study: Study) -> list[Variant]:
    """What is written down one by one, where nobody knows which design was meant."""
    conditional: Conditions = study.varied.when
    axes = {key: values for key, values in study.varied.vary.items() if key not in conditional}
    singles = [*one_at_a_time(replace(study.varied, vary=axes)), *listed_variants(study.varied), *study.varied.parts]
    return [Variant(BASELINE), *{each.name: each for each in singles}.values()]


def _known(find: Callable[[], list[Problem]]) -> list[Problem]:
    """What asking a component may refuse is told where it is built."""
    try:
        return find()
    except ParibusError:
        return []


def _unmeasured(study: Study, index: Index) -> Iterator[Problem]:
    """The metric of an objective that the base does not name, where no spec of it can be had."""
    data, metric = study.base.data, study.metric
    given = data.get("evaluate") or data.get("objective") or []
    nodes = given if isinstance(given, list) else [given]
    names = [node.get("name") if isinstance(node, Mapping) else node for node in nodes]
    plain = not metric.stage and not data.get("measure") and all(name in index.names("objective") for name in names)
    if plain and METRIC.fullmatch(metric.name) and metric.name.split("/")[1] not in names:
        spec = {"objective": [{"name": name} for name in names], "evaluate": None}
        terms = [f"val/{name}/{term}" for name in names for term in index.find("objective", str(name)).terms]
        yield from metric_problems(
            study, {BASELINE: Trial("", BASELINE, 0, spec, {}, "", "")}, index, lambda spec: terms
        )


def _knob(study: Study, index: Index, found: ResolvedVariants) -> Iterator[Problem]:
    """What a match is to turn must be a number in every variant; where none has a spec, at least an option."""
    by = study.match.by if study.match is not None else "None"
    if by != "None" and not found.resolved:
        where = study.location(("match", "by"))
        new = (each for each in _put(study, Variant(BASELINE), index, by, 1, found) if each.path == by)
        yield from (replace(each, location=where) for each in new if each.code == "unknown-key")
    for specs in found.resolved.values() if by != "None" else ():
        try:
            matched_value(specs[study.metric.stage], by, study)
        except SpecError as error:
            yield from error.problems
            return


def _tuned(study: Study, whole: Study, index: Index, found: ResolvedVariants) -> Iterator[Problem]:
    """Each value that is tried, with the baseline: what the baseline's own mistakes are is told already."""
    base = found.variants.get(BASELINE, Variant(BASELINE))
    for key, values in whole.tune.values.items() if whole.tune is not None else ():
        for value in values:
            yield from _put(study, base, index, key, value, found)


def _put(study: Study, base: Variant, index: Index, key: str, value: Any, found: ResolvedVariants) -> list[Problem]:
    """What is wrong with a value at a key, and is not wrong without it."""
    try:
        resolve(study, base, index, [(key, value)])
    except ParibusError as error:
        return [problem for problem in error.problems if problem not in found.problems]
    return []


def _alone(study: Study, index: Index, axes: Collection[str]) -> Iterator[Problem]:
    """What varies, without a base to vary: a component can be looked up all the same."""
    for keys, slot, value in _components(study, index, axes):
        validator = Validator(Tree({}, dict(study.marks)), index)
        validator.read_component(slot, value, keys, {})
        yield from validator.problems


def _components(study: Study, index: Index, axes: Collection[str]) -> Iterator[tuple[Keys, str, Any]]:
    for key in axes:
        for place, value in enumerate(study.varied.vary[key]):
            if key in index.entries and isinstance(value, (str, Mapping)):
                yield ("vary", key, place), key, value
    written = {} if study.base.data else {"variants": study.varied.variants, "changes": study.varied.changes}
    for way, those in written.items():
        for place, each in enumerate(those):
            for key, value in each.items():
                if key in index.entries and isinstance(value, (str, Mapping)):
                    yield (way, place, key), key, value
