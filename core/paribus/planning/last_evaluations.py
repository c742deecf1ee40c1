"""The metric of a trial as the mean of its last evaluations, computed from its record when that is read."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, Final

from paribus.errors import Problem, join_names
from paribus.registry import Index
from paribus.specs.program_spec import is_program
from paribus.storage.atomic import parse_number
from paribus.storage.store import Trial
from paribus.studies.study import Study

Record = Mapping[str, Any]
MAX_NAMES: Final = 8


def evaluations(record: Record, metric: str) -> list[tuple[int, float]]:
    """Return the step and the value of each evaluation of a metric; nan where it was not finite.

    A program's points all have its metric, and its record leaves out values that are not finite.
    """
    own = is_program(record["spec"]) and metric == record["spec"]["program"]["metric"]["name"]
    points = record["result"].get("curve") or ()
    values = [(int(point["step"]), point.get(metric)) for point in points if own or metric in point]
    return [(step, math.nan if value is None else parse_number(value)) for step, value in values]


def with_last_mean(record: Record, metric: str, last: int) -> Record:
    """Return a record in which the metric is the mean of its last evaluations.

    A record with fewer evaluations has no value of the metric, and one that is not finite has nan.
    """
    result = record["result"]
    if last == 1 or result["state"] != "done" or metric not in result["metrics"]:
        return record
    values = [value for _, value in evaluations(record, metric)[-last:]]
    metrics = {key: value for key, value in result["metrics"].items() if key != metric}
    if len(values) == last:
        metrics[metric] = math.fsum(values) / last if all(map(math.isfinite, values)) else math.nan
    return {**record, "result": {**result, "metrics": metrics}}


def too_few_evaluations(names: str, metric: str, last: int, count: int) -> Problem:
    """Return the problem of trials with fewer evaluations than the mean needs; without its place in the study."""
    message = f"the metric is the mean of the last {last} evaluations, more than the {count} of `{metric}` in {names}"
    valid = f"1 to {count}, or trials with more evaluations"
    return Problem(code="too-few-evaluations", path="metric.last", message=message, valid=valid)


def evaluation_problems(study: Study, trials: Mapping[str, Trial], index: Index) -> Iterator[Problem]:
    """Yield a problem for variants whose trials will have fewer evaluations than the mean needs."""
    metric = study.metric
    if metric.last == 1:
        return
    counts = {name: _evaluation_count(trial.spec, metric.name, index) for name, trial in trials.items()}
    few = {name: count for name, count in counts.items() if count < metric.last}
    if few:
        count = min(few.values())
        names = "each trial" if len(few) == len(trials) else join_names(few, MAX_NAMES)
        is_final = any(_is_final(trial.spec, metric.name, index) for trial in trials.values())
        valid = "1, as this measure runs at the end" if is_final else f"1 to {count}, or a larger `data.evaluations`"
        problem = too_few_evaluations(names, metric.name, metric.last, count)
        yield replace(problem, location=study.location(("metric", "last")), valid=valid)


def _evaluation_count(spec: Mapping[str, Any], metric: str, index: Index) -> int:
    """Return the number of evaluations of a metric in a trial; with a budget in seconds, the largest one."""
    if _is_final(spec, metric, index):
        return 1
    trainer, planned = spec["trainer"] or {}, int(spec["data"]["evaluations"])
    steps = trainer.get("max_steps")
    return planned if steps is None else min(int(steps), planned)


def _is_final(spec: Mapping[str, Any], metric: str, index: Index) -> bool:
    """Return whether a metric is that of a measure that runs only at the end of training."""
    owner = metric.partition("/")[2].partition("/")[0]
    names = [node["name"] for node in spec.get("measure") or ()]
    return owner in names and not index.find("measure", owner).traits.get("every_evaluation")
