"""Average over the tasks of a study, as in GLUE: one value for each variant and seed, from the trials of all tasks."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from paribus.analysis.select_trials import FAILED_STATES, select
from paribus.analysis.trials import ComparisonSpec, TaskTrial, TrialEntry
from paribus.studies.study_keys import Metric
from paribus.studies.task_metrics import AVERAGE

Question = tuple[list[TrialEntry], ComparisonSpec]
_OWN: Final[Mapping[str, Any]] = {"unigram_baseline": {}, "learned_below": {}, "curve": []}  # of one task alone


def average_question(questions: Sequence[Question], metrics: Sequence[Metric]) -> Question:
    """Return the trials and the comparison of the average, for those of each metric of one setting.

    A task with several metrics counts as their mean, so all tasks have the same weight.
    """
    counts = Counter(metric.task for metric in metrics)
    selected = [select(entries, comparison).trials for entries, comparison in questions]
    first = questions[0][1]
    entries = [
        _average(
            [
                TaskTrial(
                    task=metric.task,
                    metric=metric.name,
                    weight=1 / (len(counts) * counts[metric.task]),
                    entry=trials[variant][seed],
                )
                for trials, metric in zip(selected, metrics, strict=True)
            ]
        )
        for variant in first.variants
        for seed in first.seeds
        if all(seed in trials[variant] for trials in selected)
    ]
    looks = dict.fromkeys(look for _, comparison in questions for look in comparison.previous_looks)
    comparison = replace(
        first,
        metric=AVERAGE,
        stage=first.stage.partition("/")[0],
        averaged=tuple(counts),
        previous_looks=tuple(looks),
        replanned=any(comparison.replanned for _, comparison in questions),
        budget={},
        excluded=(),
    )
    return entries, comparison


def _average(tasks: Sequence[TaskTrial]) -> TrialEntry:
    """Return the average of the trials of one variant and seed. It has a record if all of them have."""
    entries = [task.entry for task in tasks]
    first = entries[0]
    unfinished = [entry.state for entry in entries if entry.record is None]
    if first.record is None or unfinished:
        failed = (entry for entry in entries if entry.state in FAILED_STATES)
        worst = next(failed, next(entry for entry in entries if entry.record is None))
        return replace(worst, record=None, tasks=tuple(tasks))
    mean = math.fsum(_weighted(task) for task in tasks)
    state = next((entry.state for entry in entries if not entry.done), first.state)
    result = {**first.result, **_OWN, "metrics": {AVERAGE: mean}, "state": state, **_costs(entries)}
    return replace(first, record={**first.record, "result": result}, state=state, tasks=tuple(tasks))


def _weighted(task: TaskTrial) -> float:
    value = task.entry.value(task.metric)
    return math.nan if value is None else task.weight * value


def _costs(entries: Sequence[TrialEntry]) -> dict[str, float]:
    """Return the FLOPs of all trainings, each counted once: of what the tasks start from, and of each task."""
    own: dict[str, float] = {}
    earlier: dict[str, float] = {}
    for entry in entries:
        if (total := entry.result.get("total_flops")) is None:
            return {}
        own[entry.identity] = entry.result["training_flops"]
        earlier["" if entry.parent is None else entry.parent.identity] = total - entry.result["training_flops"]
    return {"total_flops": math.fsum([*own.values(), *earlier.values()])}
