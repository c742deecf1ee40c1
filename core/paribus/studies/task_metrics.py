"""Metrics of several tasks, as in GLUE: a verdict on each task, and on the average over tasks."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from paribus.errors import closest_match, join_names
from paribus.schema import Pattern
from paribus.specs.tree import Keys, value_text
from paribus.specs.values import Validator, limit_message
from paribus.studies.metric_direction import direction, direction_message
from paribus.studies.stages import Stage, parse_metric_stage
from paribus.studies.study_keys import METRIC, STUDY_OPTIONS, Metric, StudyKeys

AVERAGE: Final = "average"  # name of the metric, and of its setting
_KEYS: Final[Keys] = ("metric", "tasks")


def with_first_name(metric: Any) -> Any:
    """Return the block `metric` of a study; one with `tasks` and no name gets that of its first metric."""
    if not isinstance(metric, Mapping) or not isinstance(metric.get("tasks"), Mapping) or "name" in metric:
        return metric
    first = next(iter(metric["tasks"].values()), None)
    name = first[0] if isinstance(first, list) and first else first
    return {**metric, "name": name if isinstance(name, str) else ""}


def parse_metrics(
    validator: Validator, keys: StudyKeys, stages: Sequence[Stage], given: Collection[str]
) -> tuple[Metric, ...]:
    """Return the metric of a study with its stage, or one for each value of `metric.tasks`.

    `given` are the keys of the block `metric` in the file.
    """
    metric = keys.metric
    if metric.tasks is None:
        check_direction(validator, metric.name, given)
        return (replace(metric, stage=parse_metric_stage(validator, metric, stages), task=""),)
    options = STUDY_OPTIONS["metric"].kind.options
    valid = next(option.example_text for option in options if option.name == "tasks")
    if keys.tune is not None:
        message = "`tune` selects by one metric, and `metric.tasks` has several"
        validator.add_error("unused-option", ("tune",), message, "no `tune`, or one metric")
    for key in ("name", "task"):
        if key in given:
            message = f"`{key}` would be ignored, as `tasks` has the metric of each task"
            validator.add_error("unused-option", ("metric", key), message, valid)
    if len(metric.tasks) < 2:
        validator.add_error("missing", _KEYS, "an average needs two tasks or more", valid)
    metrics = tuple(
        replace(metric, name=name, stage=stage, task=str(task), tasks=None)
        for task, value in metric.tasks.items()
        if (stage := _stage_of(validator, metric, str(task), stages))
        for name in _names(validator, value, (*_KEYS, task))
    )
    if silent := [it.name for it in metrics if direction(it.name) is None]:
        check_direction(validator, silent[0], given)
    return metrics or (replace(metric, stage=stages[-1].name, tasks=None),)


def check_direction(validator: Validator, name: str, given: Collection[str]) -> None:
    """Report a metric of which higher values may be better if the block `metric` does not say which are."""
    if "better" not in given and direction(name) is None:
        validator.add_error(
            "missing", ("metric", "better"), direction_message(name), "better: higher, or better: lower"
        )


def _stage_of(validator: Validator, metric: Metric, task: str, stages: Sequence[Stage]) -> str:
    """Return the stage of a task, `finetune/tags`; empty with a problem if there is none."""
    tasks = [stage.name for stage in stages if len(stage.names) > 1 and metric.stage in ("", stage.names[0])]
    matches = [name for name in tasks if name.partition("/")[2] == task]
    if len(matches) == 1:
        return matches[0]
    names = [name.partition("/")[2] for name in tasks]
    valid = join_names(dict.fromkeys(names)) or "the tasks of a stage: stages: {finetune: {tasks: {…}}}"
    if matches:
        message = f"several stages have a task `{task}`; `metric.stage` names one"
        validator.add_error(
            "ambiguous", (*_KEYS, task), message, join_names(name.partition("/")[0] for name in matches)
        )
    else:
        message = f'unknown task "{task}"'
        validator.add_error("unknown-stage", (*_KEYS, task), message, valid, closest_match(task, names))
    return ""


def _names(validator: Validator, value: Any, keys: Keys) -> Iterator[str]:
    """Yield the metrics of a task: one, or a list whose mean is the task's."""
    limit = Pattern(*METRIC)
    values = value if isinstance(value, list) and value else [value]
    for name in values:
        if not isinstance(name, str):
            message = f"expected a metric or a list of metrics, got {value_text(name)}"
            validator.add_error("wrong-type", keys, message, METRIC[1])
        elif message := limit_message(str(keys[-1]), limit, name, {}):
            validator.add_error("bad-name", keys, message, METRIC[1])
        elif values.count(name) > 1:
            validator.add_error("duplicate-item", keys, f"`{name}` is in this list twice", "each metric once")
            return
        else:
            yield name
