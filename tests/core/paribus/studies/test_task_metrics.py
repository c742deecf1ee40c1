"""A study whose metric is the average over several tasks: its metrics, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.fixtures.problems import raises_problem

import paribus
from paribus.analysis.api import entries_by_setting
from paribus.errors import SpecError
from paribus.registry import Index
from paribus.specs.tree import plain_tree
from paribus.studies.study import Study, parse_study

TASKS: dict[str, Any] = {
    "order": {"objective": "sop"},
    "next": {"objective": "nsp"},
    "words": {"objective": "mlm"},
}
STUDY: dict[str, Any] = {
    "base": {"preset": "bert-tiny", "dims.width": 32},
    "vary": {"attention": ["mqa"]},
    "stages": {
        "pretrain": {"objective": ["mlm", "nsp"], "budget": {"steps": 6}},
        "finetune": {"budget": {"steps": 4}, "tasks": TASKS},
    },
    "metric": {
        "tasks": {"order": "val/sop/accuracy", "next": ["val/nsp/accuracy", "val/nsp/loss"]},
        "better": "higher",
        "margin": 0.1,
    },
}


def study(plugin_index: Index, **metric: Any) -> Study:
    tree = {**STUDY, "metric": {**STUDY["metric"], **metric}}
    return parse_study("mine", plain_tree(tree, "study"), plugin_index)


def test_each_task_has_its_metrics_and_the_options_of_all(plugin_index: Index) -> None:
    result = study(plugin_index)
    assert [(metric.task, metric.stage, metric.name, metric.margin) for metric in result.metrics] == [
        ("order", "finetune/order", "val/sop/accuracy", 0.1),
        ("next", "finetune/next", "val/nsp/accuracy", 0.1),
        ("next", "finetune/next", "val/nsp/loss", 0.1),
    ]
    assert result.metric == result.metrics[0]


def test_tables_are_named_after_the_tasks_and_what_tells_their_metrics_apart(tmp_path: Path) -> None:
    finetune = STUDY["stages"]["finetune"]
    measured = {**TASKS, "words": {"objective": "mlm", "measure": [{"name": "other-corpus", "corpus": "python-docs"}]}}
    stages = {**STUDY["stages"], "finetune": {**finetune, "tasks": measured}}
    words = {"words": ["val/mlm/loss", "val/other-corpus/mlm.loss"]}
    metric = {**STUDY["metric"], "tasks": {**STUDY["metric"]["tasks"], **words}}
    planned = paribus.study({**STUDY, "stages": stages, "metric": metric}, store=tmp_path)
    assert [comparison.setting for _, comparison in entries_by_setting(planned)] == [
        "average", "order", "next accuracy", "next loss", "words mlm loss", "words other-corpus mlm.loss",
    ]  # fmt: skip


def test_a_study_of_one_metric_has_no_average(plugin_index: Index) -> None:
    result = study(plugin_index, tasks=None, name="val/sop/loss", stage="finetune", task="order")
    assert result.task_metrics == ()
    assert result.metrics == (result.metric,)


@pytest.mark.parametrize(
    ("tasks", "code", "words"),
    [
        ({"order": "val/sop/accuracy", "nxt": "val/nsp/loss"}, "unknown-stage", ("metric.tasks.nxt", "next")),
        ({"order": "val/sop/accuracy"}, "missing", ("metric.tasks", "two tasks")),
        ({"order": "accuracy", "next": "val/nsp/loss"}, "bad-name", ("metric.tasks.order", "val/<objective>/<name>")),
        ({"order": 3, "next": "val/nsp/loss"}, "wrong-type", ("metric.tasks.order", "a list of metrics")),
        ({"order": [], "next": "val/nsp/loss"}, "wrong-type", ("metric.tasks.order", "a list of metrics")),
        (
            {"order": ["val/sop/loss", "val/sop/loss"], "next": "val/nsp/loss"},
            "duplicate-item",
            ("metric.tasks.order", "val/sop/loss"),
        ),
    ],
)
def test_a_wrong_task_or_metric_is_refused(
    plugin_index: Index, tasks: dict[str, Any], code: str, words: tuple[str, ...]
) -> None:
    with raises_problem(SpecError, code, *words):
        study(plugin_index, tasks=tasks)


@pytest.mark.parametrize("key", ["name", "task"])
def test_one_metric_beside_those_of_tasks_is_refused(plugin_index: Index, key: str) -> None:
    value = "val/sop/loss" if key == "name" else "order"
    with raises_problem(SpecError, "unused-option", f"metric.{key}"):
        study(plugin_index, **{key: value})


def test_tuning_on_several_metrics_is_refused(plugin_index: Index) -> None:
    tree = {**STUDY, "tune": {"optimizer.lr": [1e-3, 2e-3]}}
    with raises_problem(SpecError, "unused-option", "tune", "metric.tasks"):
        parse_study("mine", plain_tree(tree, "study"), plugin_index)


def test_a_task_of_two_stages_needs_its_stage(plugin_index: Index) -> None:
    second = {"again": {"from": "pretrain", "budget": {"steps": 4}, "tasks": TASKS}}
    tree = {**STUDY, "stages": {**STUDY["stages"], **second}}
    with raises_problem(SpecError, "ambiguous", "metric.tasks.order", "finetune", "again"):
        parse_study("mine", plain_tree(tree, "study"), plugin_index)
    named = parse_study(
        "mine", plain_tree({**tree, "metric": {**STUDY["metric"], "stage": "again"}}, "study"), plugin_index
    )
    assert {metric.stage for metric in named.metrics} == {"again/order", "again/next"}
