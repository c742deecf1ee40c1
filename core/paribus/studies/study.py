"""Study: a base spec, what varies, a design, seeds, a budget and a metric, read from one YAML file.

The file is shipped with Paribus, installed by a plugin, or at a path.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Final, final

import paribus
from paribus.errors import Problem, SpecError, closest_match, join_names
from paribus.registry import Index
from paribus.registry.component_index import NAME
from paribus.specs.key_blocks import read_block
from paribus.specs.load import apply_preset, load, set_path
from paribus.specs.named_plugins import check_plugins
from paribus.specs.tree import Keys, Tree, copy_values, value_text
from paribus.specs.values import Validator
from paribus.storage.atomic import digest
from paribus.studies.budgets import Budget, parse_budget
from paribus.studies.designs import Variation
from paribus.studies.parse_options import (
    Tune,
    Worth,
    check_looks,
    check_matches,
    check_scale_keys,
    check_tuned_keys,
    parse_loggers,
    parse_scales,
    parse_seeds,
    parse_tune,
    parse_worth,
    scaled_base,
)
from paribus.studies.parse_program import (
    parse_effects,
    parse_program,
    parse_program_worth,
    program_base,
    program_metric,
)
from paribus.studies.parse_vary import (
    Exclusion,
    check_sections,
    null_keys,
    parse_exclusions,
    parse_variation,
    varied_keys,
)
from paribus.studies.stages import (
    SINGLE_STAGE,
    Stage,
    check_stage_keys,
    check_stage_names,
    parse_stages,
)
from paribus.studies.study_keys import Match, Metric, ProgramKeys, StudyKeys
from paribus.studies.study_kind import known_keys
from paribus.studies.task_metrics import parse_metrics, with_first_name

FILE = "study.yaml"
RUN_KEYS = ("name", "seeds", "stop", "launcher", "loggers", "timeout", "plugins")
"""Keys that do not change what a study compares: with more seeds, its trials stay in the same folder."""
MAX_SEEDS: Final = 10_000


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
    open_ended: bool = False  # verdicts hold at every number of seeds
    task_metrics: tuple[Metric, ...] = ()  # of a table over tasks, of which `metric` is the first
    program: Mapping[str, Any] | None = None  # of a study of a program, whose specs are its options
    effects: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # what its options change on purpose
    worth: Worth | None = None

    @property
    def metrics(self) -> tuple[Metric, ...]:
        """The metrics that verdicts are about, besides their average."""
        return self.task_metrics or (self.metric,)

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
    data, is_program = known_keys(validator, tree.data)
    if is_program:
        return _read_program_study(name, validator, data), validator.problems
    keys = read_block(validator, StudyKeys, _long_forms({**data, **check_sections(validator, data)}))
    check_plugins(validator, keys.plugins or [], "study")
    varied, seeds = parse_variation(validator, keys), parse_seeds(validator, keys.seeds, ("seeds",), 0, MAX_SEEDS)
    stages = parse_stages(validator, keys.stages)
    places = varied_keys(varied)
    check_stage_keys(validator, stages, places, null_keys(varied))
    check_stage_names(validator, stages, places)
    check_matches(validator, keys.match)
    tune = parse_tune(validator, keys.tune, seeds)
    check_tuned_keys(validator, tune, places, stages, [match.by for match in keys.match if match is not None])
    scales = parse_scales(validator, keys.scales)
    check_scale_keys(validator, scales, places, stages)
    load_base = partial(_load_base, validator, index, keys)
    metrics = parse_metrics(validator, keys, stages, _given(data))
    study = Study(
        name=keys.name or name,
        base=load_base(keys.base, "base"),
        design=keys.design,
        varied=varied,
        seeds=seeds,
        budget=parse_budget(validator, keys.budget, ("budget",)),
        match=keys.match[0] if len(keys.match) == 1 else None,
        metric=metrics[0],
        launcher=keys.launcher,
        timeout=keys.timeout,
        loggers=parse_loggers(validator, keys.loggers),
        stages=stages,
        exclude=parse_exclusions(validator, keys),
        marks=tree.locations,
        matches=keys.match if len(keys.match) > 1 else (),
        scales={name: scaled_base(validator, name, scales[name], keys.base, load_base) for name in scales if keys.base},
        tune=tune,
        looks=check_looks(validator, keys, len(seeds)),
        open_ended=keys.stop is not None and keys.stop.open,
        task_metrics=metrics if len(metrics) > 1 else (),
        worth=_parse_worth(validator, keys),
    )
    return study, validator.problems


def _parse_worth(validator: Validator, keys: StudyKeys) -> Worth | None:
    """Return the budgets at which the baseline is trained besides that of the study."""
    factors = parse_worth(validator, keys, [factor for factor in keys.worth if factor], ("worth",))
    if factors and not keys.budget and not any((stage or {}).get("budget") for stage in (keys.stages or {}).values()):
        message = "the baseline would be trained at multiples of a budget, and the study has none"
        validator.add_error("missing", ("worth",), message, "a budget, such as `budget: {steps: 300}`")
    if factors and isinstance(keys.metric, Metric) and keys.metric.tasks:
        message = "an average over tasks has no trial of its own at another budget"
        validator.add_error("incompatible-options", ("worth",), message, "`worth` in a study with one metric")
    return Worth(factors) if factors else None


def _read_program_study(name: str, validator: Validator, data: Mapping[str, Any]) -> Study:
    """Return the readable part of a study of a program."""
    keys = read_block(validator, ProgramKeys, {**data, **_long_stop(data), **check_sections(validator, data)})
    check_plugins(validator, keys.plugins or [], "study")
    varied, seeds = parse_variation(validator, keys), parse_seeds(validator, keys.seeds, ("seeds",), 0, MAX_SEEDS)
    places = varied_keys(varied)
    program = parse_program(validator, keys, places)
    tune = parse_tune(validator, keys.tune, seeds)
    check_tuned_keys(validator, tune, places, SINGLE_STAGE, ())
    scales = parse_scales(validator, keys.scales)
    check_scale_keys(validator, scales, places, SINGLE_STAGE)
    base = (("base",), keys.base or {})
    return Study(
        name=keys.name or name,
        base=program_base(validator, program, base),
        design=keys.design,
        varied=varied,
        seeds=seeds,
        budget={},
        match=None,
        metric=program_metric(validator, keys, _given(data)),
        launcher=keys.launcher,
        timeout=keys.timeout,
        exclude=parse_exclusions(validator, keys),
        marks=validator.tree.locations,
        scales={
            name: program_base(validator, program, base, (("scales", name), changes))
            for name, changes in scales.items()
        },
        tune=tune,
        looks=check_looks(validator, keys, len(seeds)),
        open_ended=keys.stop is not None and keys.stop.open,
        program=program,
        effects=parse_effects(validator, keys, places),
        worth=parse_program_worth(validator, keys, places),
    )


def _given(data: Mapping[str, Any]) -> Collection[str]:
    """Return the keys of the block `metric` in the file; a value of another type is reported by itself."""
    metric = data.get("metric")
    return metric if isinstance(metric, Mapping) else ()


def _long_stop(data: Mapping[str, Any]) -> dict[str, Any]:
    """Return `stop` without its short form."""
    return {"stop": {"when": data["stop"]}} if isinstance(data.get("stop"), str) else {}


def _long_forms(data: Mapping[str, Any]) -> dict[str, Any]:
    """Return the keys of a file without short forms: `stop: when-decided`, and `none` among matches."""
    match, short = data.get("match"), _long_stop(data)
    if isinstance(match, list):
        short["match"] = [None if item == "none" else item for item in match]
    return {**data, **short, "metric": with_first_name(data.get("metric") or {})}


def _load_base(validator: Validator, index: Index, keys: StudyKeys, base: Any, key: str) -> Tree:
    """Return a base spec, with the study's `evaluate` and `measure`: all variants are measured alike."""
    if isinstance(base, str):
        tree = _load(validator, partial(load, base, (), index), (key,))
    elif isinstance(base, dict):
        written = replace(validator.tree.subtree(("base",)), data=copy_values(base))
        tree = _load(validator, partial(apply_preset, written, index), (key,))
    else:
        if base is not None:
            message = f"`base` is {value_text(base)}: expected the spec that every variant starts from"
            validator.add_error("missing", ("base",), message, "a preset's name")
        return Tree()
    for name, value in (("evaluate", keys.evaluate), ("measure", keys.measure)) if tree.data else ():
        if value is not None:
            put_at(tree, name, value, validator.tree.location((name,)))
    return tree


def _load(validator: Validator, load_tree: Callable[[], Tree], keys: Keys) -> Tree:
    """Return a base spec; on an error note its problems and return an empty tree."""
    try:
        return load_tree()
    except SpecError as error:
        location = validator.tree.location(keys)
        problems = (it if it.location or it.path else replace(it, location=location) for it in error.problems)
        validator.problems += (problem for problem in problems if problem not in validator.problems)
        return Tree()


def put_at(tree: Tree, dotted: str, value: Any, location: str) -> None:
    """Set a dotted key, and remember where its value was written."""
    set_path(tree, dotted, Tree(value, {(): location}), location)


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
    """Return the name of a study given as a dictionary: a digest of what it compares.

    It depends neither on the number of seeds nor on the evaluations that the metric averages, which change no trial.
    """
    compared = {key: value for key, value in study.items() if key not in RUN_KEYS}
    if isinstance(metric := compared.get("metric"), Mapping):
        block = {key: value for key, value in metric.items() if key != "last"}
        compared["metric"] = block["name"] if block.keys() == {"name"} else block
    return f"study-{digest(json.dumps(compared, sort_keys=True, default=repr).encode())[:8]}"


def _shipped() -> Path:
    """Return the folder of the shipped studies: inside the package in a wheel, beside it in a checkout."""
    package = Path(paribus.__file__).resolve().parent
    inside = package / "shipped" / "ablations"
    return inside if inside.is_dir() else package.parents[1] / "ablations"
