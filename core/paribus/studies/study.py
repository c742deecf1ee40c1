"""A study: a base spec, what varies, a design, seeds, a budget and a metric, from one YAML file."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any, Final, Literal, final

from paribus.errors import Problem, SpecError, join_names
from paribus.registry import Index
from paribus.registry.component_index import NAME
from paribus.specs.load import begun, load
from paribus.specs.override import put
from paribus.specs.tree import Keys, Tree, copied, shown
from paribus.specs.values import Validator
from paribus.studies.budgets import Budget, parse_budget
from paribus.studies.designs import Variation
from paribus.studies.options import (
    Match,
    Tune,
    check_scale_keys,
    check_tuned_keys,
    parse_loggers,
    parse_looks,
    parse_matches,
    parse_scales,
    parse_seeds,
    parse_tune,
)
from paribus.studies.parse_vary import Exclusion, parse_design, parse_exclusions, parse_variation, varied_keys
from paribus.studies.stages import (
    SINGLE_STAGE,
    Stage,
    check_stage_keys,
    check_stage_names,
    parse_metric_stage,
    parse_stages,
)

KEYS: Final = (
    "name",
    "base",
    "vary",
    "design",
    "variants",
    "changes",
    "fraction",
    "exclude",
    "stages",
    "seeds",
    "budget",
    "match",
    "evaluate",
    "measure",
    "metric",
    "launcher",
    "loggers",
    "timeout",
    "scales",
    "tune",
    "stop",
)
METRIC: Final = re.compile(r"val/[a-z0-9._-]+/[a-z0-9._-]+")
METRICS: Final = ("name", "better", "margin", "unlearned", "stage", "task")
SEEDS: Final = 5  # three make an interval 2.5 times as wide, after Holm
MOST_SEEDS: Final = 10_000
MOST_MARGIN: Final = 1e9

Better = Literal["lower", "higher"]


@final
@dataclass(frozen=True)
class Metric:
    """What the verdict is about; `margin` is how much is too little to matter, where the study says so."""

    name: str
    better: Better = "lower"
    margin: float | None = None
    unlearned: bool = False  # whether a verdict is wanted of models that do not beat guessing by frequency
    stage: str = ""  # the stage at whose end it is measured, with its task, where there are any


@final
@dataclass(frozen=True)
class Study:
    """A study that has been read and checked; its variants are still to be resolved."""

    name: str
    base: Tree
    design: str
    varied: Variation
    seeds: tuple[int, ...]
    budget: Budget
    match: Match | None
    metric: Metric
    launcher: Any
    timeout: float | None
    marks: Mapping[Keys, str]  # where what varies was written
    stages: tuple[Stage, ...] = SINGLE_STAGE
    matches: tuple[Match | None, ...] = ()  # several ways to match, side by side; `match` is then none
    scales: Mapping[str, Tree] = field(default_factory=dict)  # the base at each, in place of `base`
    tune: Tune | None = None
    loggers: tuple[Mapping[str, Any], ...] = ()
    exclude: tuple[Exclusion, ...] = ()
    looks: tuple[int, ...] = ()  # after how many seeds verdicts are taken, and variants may stop

    def location_of(self, key: str) -> str:
        """Where a key that varies was written first."""
        return self.location(self._written.get(key, ("tune", key) if ("tune", key) in self.marks else ("vary",)))

    @cached_property
    def _written(self) -> Mapping[str, Keys]:
        return {key: keys for keys, key in reversed(varied_keys(self.varied))}

    def location(self, keys: Keys) -> str:
        return next((self.marks[keys[:end]] for end in range(len(keys), -1, -1) if keys[:end] in self.marks), "")


def parse_study(name: str, tree: Tree, index: Index) -> Study:
    """The study in a tree, or one error with every problem of its keys."""
    study, problems = read_study(name, tree, index)
    if problems:
        raise SpecError(*problems)
    return study


def read_study(name: str, tree: Tree, index: Index) -> tuple[Study, list[Problem]]:
    """The study as far as it could be read, and every problem of its keys."""
    validator = Validator(tree, index)
    given: Mapping[str, Any] = tree.data
    for key in given:
        if key not in KEYS:
            validator.unknown(key, (key,), KEYS)
    design = parse_design(validator, given.get("design", "one-at-a-time"))
    varied = parse_variation(validator, given, design)
    stages = parse_stages(validator, given.get("stages"), partial(parse_budget, validator))
    keys = varied_keys(varied)
    check_stage_keys(validator, stages, keys)
    check_stage_names(validator, stages, keys)
    base, matches = _base(validator, given, index), parse_matches(validator, given.get("match"))
    seeds = parse_seeds(validator, given.get("seeds", SEEDS), ("seeds",), 0, MOST_SEEDS)
    tune = parse_tune(validator, given.get("tune"), seeds)
    check_tuned_keys(validator, tune, keys, stages, [match.by for match in matches if match is not None])
    check_scale_keys(validator, given.get("scales"), keys, stages)
    study = Study(
        name=_name(validator, given, name),
        base=base,
        design=design,
        varied=varied,
        seeds=seeds,
        budget=parse_budget(validator, given.get("budget"), ("budget",)),
        match=matches[0] if len(matches) == 1 else None,
        metric=_metric(validator, given.get("metric"), stages),
        launcher=validator.component("launcher", given.get("launcher", "local"), ("launcher",), {}),
        timeout=_timeout(validator, given.get("timeout")),
        loggers=parse_loggers(validator, given.get("loggers")),
        stages=stages,
        exclude=parse_exclusions(validator, given.get("exclude"), design),
        marks=tree.marks,
        matches=matches if len(matches) > 1 else (),
        scales=parse_scales(
            validator, given.get("scales"), given.get("base"), partial(_begun, validator, given, index)
        ),
        tune=tune,
        looks=parse_looks(validator, given, design, seeds),
    )
    return study, validator.problems


def _name(validator: Validator, given: Mapping[str, Any], default: str) -> str:
    """Return the name of the study's folder in a store."""
    name = given.get("name", default)
    if isinstance(name, str) and NAME.fullmatch(name):
        return name
    valid = "lower-case letters, digits, `.`, `_` and `-`, at most 64: my-study"
    validator.add_error("bad-name", ("name",), f"a study cannot be called {shown(name)}", valid)
    return default


def _base(validator: Validator, given: Mapping[str, Any], index: Index) -> Tree:
    base = given.get("base")
    marks = {keys[1:]: mark for keys, mark in validator.tree.marks.items() if keys[:1] == ("base",)}
    if isinstance(base, str):
        return _measured(validator, given, _found(validator, partial(load, base, (), index), ("base",)))
    if isinstance(base, dict):
        return _measured(
            validator, given, _found(validator, partial(begun, Tree(copied(base), marks), index), ("base",))
        )
    found = "missing" if base is None else shown(base)
    validator.add_error("missing", ("base",), f"`base` is {found}: what every variant starts from", "a preset's name")
    return Tree()


def _found(validator: Validator, find: Callable[[], Tree], at: Keys) -> Tree:
    """A base; where there is none, what is wrong is told with all else."""
    try:
        return find()
    except SpecError as error:
        where = validator.tree.where(at)
        told = (each if each.location or each.path else replace(each, location=where) for each in error.problems)
        validator.problems += (each for each in told if each not in validator.problems)
        return Tree()


def _begun(validator: Validator, given: Mapping[str, Any], index: Index, base: Mapping[str, Any]) -> Tree:
    """The base at a scale, from what is said of it."""
    marks = {keys[1:]: mark for keys, mark in validator.tree.marks.items() if keys[:1] == ("base",)}
    tree = _found(validator, partial(begun, Tree(dict(base), marks), index), ("scales",))
    return _measured(validator, given, tree)


def _measured(validator: Validator, given: Mapping[str, Any], tree: Tree) -> Tree:
    """What the study says of all that is trained is measured alike."""
    for key in () if not tree.data else ("evaluate", "measure"):
        if key in given:
            put_at(tree, key, given[key], validator.tree.where((key,)))
    return tree


def put_at(tree: Tree, dotted: str, value: Any, where: str) -> None:
    """Gives a dotted key a value, and remembers where that was written."""
    put(tree, dotted, Tree(value, {(): where}), where)


def _metric(validator: Validator, given: Any, stages: Sequence[Stage]) -> Metric:
    if isinstance(given, str):
        given = {"name": given}
    found = validator.mapping(given or {}, ("metric",), join_names(METRICS)) or {}
    for key in found:
        if key not in METRICS:
            validator.unknown(key, ("metric", key), METRICS)
    name, better, margin = found.get("name"), found.get("better", "lower"), found.get("margin")
    if not isinstance(name, str) or not METRIC.fullmatch(name):
        validator.add_error("missing", ("metric", "name"), _is(found, "name"), "val/<objective>/<name>: val/mlm/loss")
    if better not in ("lower", "higher"):
        validator.add_error("wrong-type", ("metric", "better"), f"this is {shown(better)}", "lower, higher")
    if margin is not None and (
        isinstance(margin, bool) or not isinstance(margin, (int, float)) or not 0 < margin < 1e9
    ):
        validator.add_error("wrong-type", ("metric", "margin"), f"this is {shown(margin)}", "a number > 0, or none")
    unlearned = found.get("unlearned", False)
    if not isinstance(unlearned, bool):
        validator.add_error("wrong-type", ("metric", "unlearned"), f"this is {shown(unlearned)}", "true, false")
    stage = parse_metric_stage(validator, found, stages)
    return Metric(str(name), "higher" if better == "higher" else "lower", margin, unlearned is True, stage)


def _is(found: Mapping[str, Any], key: str) -> str:
    """What stands at a key that is needed: what is not there is no null."""
    return f"this is {shown(found[key])}" if key in found else f"`{key}` is missing"


def _timeout(validator: Validator, given: Any) -> float | None:
    if given is None:
        return None
    if isinstance(given, bool) or not isinstance(given, (int, float)) or not 0 < given < 1e9:
        validator.add_error("wrong-type", ("timeout",), f"this is {shown(given)}", "seconds for a trial, > 0")
        return None
    return float(given)
