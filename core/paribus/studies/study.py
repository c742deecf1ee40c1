"""Study: a base spec, what varies, a design, seeds, a budget and a metric, read from one YAML file.

The file is shipped with Paribus, installed by a plugin, or at a path.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Final, Literal, final

import paribus
from paribus.errors import Problem, SpecError, closest_match, join_names
from paribus.registry import Index
from paribus.registry.component_index import NAME
from paribus.specs.load import apply_preset, load, set_path
from paribus.specs.tree import Keys, Tree, copy_values, value_text
from paribus.specs.values import Validator
from paribus.storage.atomic import digest
from paribus.studies.budgets import Budget, parse_budget
from paribus.studies.designs import Variation
from paribus.studies.options import (
    Match,
    Tune,
    check_scale_keys,
    check_tuned_keys,
    describe_value,
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

FILE = "study.yaml"
RUN_KEYS = ("name", "seeds", "stop", "launcher", "loggers", "timeout")
"""Keys that do not change what a study compares: with more seeds, its trials stay in the same folder."""
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
METRIC_KEYS: Final = ("name", "better", "margin", "unlearned", "stage", "task")
DEFAULT_SEEDS: Final = 5  # with three, the interval would be 2.5 times as wide after Holm's correction
MAX_SEEDS: Final = 10_000
MAX_NUMBER: Final = 1e9  # of a margin, or of seconds

Better = Literal["lower", "higher"]


@final
@dataclass(frozen=True)
class Metric:
    """The metric of the verdict. A difference below `margin` is too small to matter."""

    name: str
    better: Better = "lower"
    margin: float | None = None
    unlearned: bool = False  # whether to judge models that do not beat the unigram baseline
    stage: str = ""  # the stage, with its task, at whose end the metric is measured


@final
@dataclass(frozen=True)
class Study:
    """A study after reading and checking. Its variants are not resolved yet."""

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
    marks: Mapping[Keys, str]  # file and line of each key
    stages: tuple[Stage, ...] = SINGLE_STAGE
    matches: tuple[Match | None, ...] = ()  # several matches, shown side by side; `match` is then None
    scales: Mapping[str, Tree] = field(default_factory=dict)  # the base at each scale, in place of `base`
    tune: Tune | None = None
    loggers: tuple[Mapping[str, Any], ...] = ()
    exclude: tuple[Exclusion, ...] = ()
    looks: tuple[int, ...] = ()  # numbers of seeds after which a verdict may stop a variant early

    def location_of(self, key: str) -> str:
        """Return the file and line where a varied or tuned key is first set."""
        keys = ("tune", key) if ("tune", key) in self.marks else ("vary",)
        return self.location(self._keys_of_varied.get(key, keys))

    @cached_property
    def _keys_of_varied(self) -> Mapping[str, Keys]:
        return {key: keys for keys, key in reversed(varied_keys(self.varied))}

    def location(self, keys: Keys) -> str:
        """Return the file and line of a key, or of the nearest key around it."""
        return next((self.marks[keys[:end]] for end in range(len(keys), -1, -1) if keys[:end] in self.marks), "")


def parse_study(name: str, tree: Tree, index: Index) -> Study:
    """Return the study in a tree; otherwise raise one error with every problem of its keys."""
    study, problems = read_study(name, tree, index)
    if problems:
        raise SpecError(*problems)
    return study


def read_study(name: str, tree: Tree, index: Index) -> tuple[Study, list[Problem]]:
    """Return the readable part of a study, and every problem of its keys."""
    validator = Validator(tree, index)
    data: Mapping[str, Any] = tree.data
    for key in data:
        if key not in KEYS:
            validator.add_unknown_key(key, (key,), KEYS)
    design = parse_design(validator, data.get("design", "one-at-a-time"))
    varied = parse_variation(validator, data, design)
    stages = parse_stages(validator, data.get("stages"), partial(parse_budget, validator))
    keys = varied_keys(varied)
    check_stage_keys(validator, stages, keys)
    check_stage_names(validator, stages, keys)
    base, matches = _parse_base(validator, data, index), parse_matches(validator, data.get("match"))
    seeds = parse_seeds(validator, data.get("seeds", DEFAULT_SEEDS), ("seeds",), 0, MAX_SEEDS)
    tune = parse_tune(validator, data.get("tune"), seeds)
    check_tuned_keys(validator, tune, keys, stages, [match.by for match in matches if match is not None])
    check_scale_keys(validator, data.get("scales"), keys, stages)
    load_base = partial(_base_at_scale, validator, data, index)
    study = Study(
        name=_parse_name(validator, data, name),
        base=base,
        design=design,
        varied=varied,
        seeds=seeds,
        budget=parse_budget(validator, data.get("budget"), ("budget",)),
        match=matches[0] if len(matches) == 1 else None,
        metric=_parse_metric(validator, data.get("metric"), stages),
        launcher=validator.read_component("launcher", data.get("launcher", "local"), ("launcher",), {}),
        timeout=_parse_timeout(validator, data.get("timeout")),
        loggers=parse_loggers(validator, data.get("loggers")),
        stages=stages,
        exclude=parse_exclusions(validator, data.get("exclude"), design),
        marks=tree.locations,
        matches=matches if len(matches) > 1 else (),
        scales=parse_scales(validator, data.get("scales"), data.get("base"), load_base),
        tune=tune,
        looks=parse_looks(validator, data, design, seeds),
    )
    return study, validator.problems


def _parse_name(validator: Validator, data: Mapping[str, Any], default: str) -> str:
    """Return the name of the study's folder in a store."""
    name = data.get("name", default)
    if isinstance(name, str) and NAME.fullmatch(name):
        return name
    valid = "lower-case letters, digits, `.`, `_` and `-`, at most 64: my-study"
    validator.add_error("bad-name", ("name",), f"a study cannot be called {value_text(name)}", valid)
    return default


def _parse_base(validator: Validator, data: Mapping[str, Any], index: Index) -> Tree:
    base = data.get("base")
    if isinstance(base, str):
        return _add_evaluation(validator, data, _load(validator, partial(load, base, (), index), ("base",)))
    if isinstance(base, dict):
        tree = Tree(copy_values(base), _base_marks(validator))
        return _add_evaluation(validator, data, _load(validator, partial(apply_preset, tree, index), ("base",)))
    problem = "missing" if base is None else value_text(base)
    message = f"`base` is {problem}: expected the spec that every variant starts from"
    validator.add_error("missing", ("base",), message, "a preset's name")
    return Tree()


def _base_marks(validator: Validator) -> dict[Keys, str]:
    return {keys[1:]: mark for keys, mark in validator.tree.locations.items() if keys[:1] == ("base",)}


def _load(validator: Validator, load_tree: Callable[[], Tree], keys: Keys) -> Tree:
    """Return a base spec; on an error note its problems and return an empty tree."""
    try:
        return load_tree()
    except SpecError as error:
        location = validator.tree.location(keys)
        problems = (it if it.location or it.path else replace(it, location=location) for it in error.problems)
        validator.problems += (problem for problem in problems if problem not in validator.problems)
        return Tree()


def _base_at_scale(validator: Validator, data: Mapping[str, Any], index: Index, base: Mapping[str, Any]) -> Tree:
    tree = Tree(dict(base), _base_marks(validator))
    return _add_evaluation(validator, data, _load(validator, partial(apply_preset, tree, index), ("scales",)))


def _add_evaluation(validator: Validator, data: Mapping[str, Any], tree: Tree) -> Tree:
    """Put the study's `evaluate` and `measure` into the base, so that all variants are measured alike."""
    for key in () if not tree.data else ("evaluate", "measure"):
        if key in data:
            put_at(tree, key, data[key], validator.tree.location((key,)))
    return tree


def put_at(tree: Tree, dotted: str, value: Any, location: str) -> None:
    """Set a dotted key, and remember where its value was written."""
    set_path(tree, dotted, Tree(value, {(): location}), location)


def _parse_metric(validator: Validator, value: Any, stages: Sequence[Stage]) -> Metric:
    if isinstance(value, str):
        value = {"name": value}
    options = validator.as_mapping(value or {}, ("metric",), join_names(METRIC_KEYS)) or {}
    for key in options:
        if key not in METRIC_KEYS:
            validator.add_unknown_key(key, ("metric", key), METRIC_KEYS)
    name, better, margin = options.get("name"), options.get("better", "lower"), options.get("margin")
    if not isinstance(name, str) or not METRIC.fullmatch(name):
        valid = "val/<objective>/<name>: val/mlm/loss"
        validator.add_error("missing", ("metric", "name"), describe_value(options, "name"), valid)
    if better not in ("lower", "higher"):
        validator.add_error("wrong-type", ("metric", "better"), f"got {value_text(better)}", "lower, higher")
    if margin is not None and not _is_positive(margin):
        validator.add_error("wrong-type", ("metric", "margin"), f"got {value_text(margin)}", "a number > 0, or none")
    unlearned = options.get("unlearned", False)
    if not isinstance(unlearned, bool):
        validator.add_error("wrong-type", ("metric", "unlearned"), f"got {value_text(unlearned)}", "true, false")
    stage = parse_metric_stage(validator, options, stages)
    return Metric(str(name), "higher" if better == "higher" else "lower", margin, unlearned is True, stage)


def _parse_timeout(validator: Validator, value: Any) -> float | None:
    if value is not None and not _is_positive(value):
        validator.add_error("wrong-type", ("timeout",), f"got {value_text(value)}", "seconds for a trial, > 0")
        return None
    return None if value is None else float(value)


def _is_positive(value: Any) -> bool:
    return not isinstance(value, bool) and isinstance(value, (int, float)) and 0 < value < MAX_NUMBER


def available_studies(index: Index) -> Mapping[str, Path]:
    """Return the file of every named study."""
    shipped = {folder.name: folder / FILE for folder in sorted(_shipped().glob("*")) if (folder / FILE).is_file()}
    return {**shipped, **index.studies}


def locate_study(source: str | Path, index: Index) -> tuple[Path, str]:
    """Return the file of a study and its default name."""
    if isinstance(source, Path) or source.endswith((".yaml", ".yml")) or "/" in source:
        path = Path(source)
        if path.is_dir():
            path = path / FILE
        name = (path.resolve().parent.name if path.name == FILE else path.stem).lower()
        if not NAME.fullmatch(name):
            message = f"`{name}` cannot be the name of a study"
            raise SpecError(
                Problem(code="bad-name", location=str(path), message=message, valid=f"a file name like {NAME.pattern}")
            )
        return path, name
    files = available_studies(index)
    if source not in files:
        valid = f"{join_names(files) or 'none is installed'}, or a path that ends in .yaml"
        message = f'unknown study "{source}"'
        raise SpecError(
            Problem(code="unknown-study", message=message, valid=valid, suggestion=closest_match(source, files))
        )
    return files[source], source


def default_name(study: Mapping[str, Any]) -> str:
    """Return the name of a study given as a dictionary: a digest of what it compares, whatever its number of seeds."""
    compared = {key: value for key, value in study.items() if key not in RUN_KEYS}
    return f"study-{digest(json.dumps(compared, sort_keys=True, default=repr).encode())[:8]}"


def _shipped() -> Path:
    """Return the folder of the shipped studies: inside the package in a wheel, beside it in a checkout."""
    package = Path(paribus.__file__).resolve().parent
    inside = package / "shipped" / "ablations"
    return inside if inside.is_dir() else package.parents[1] / "ablations"
