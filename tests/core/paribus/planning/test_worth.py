"""Trials of the baseline at other budgets: their specs, with stages, scales and tuning, and what is refused."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from tests.fixtures.problems import raises_problem

from paribus.errors import SpecError
from paribus.planning.plan import Plan, plan
from paribus.registry import Index
from paribus.specs.tree import plain_tree
from paribus.studies.study import parse_study

STUDY: Mapping[str, Any] = {
    "base": "encoder-tiny",
    "vary": {"attention": ["mqa"]},
    "seeds": 2,
    "metric": {"name": "val/mlm/loss"},
    "worth": [2, 0.5],
}


def planned(plugin_index: Index, **changes: Any) -> Plan:
    study = parse_study("mine", plain_tree({**STUDY, **changes}, "study"), plugin_index)
    return plan(study, plugin_index, fingerprint=lambda spec: "text", flops_per_step=lambda spec: 100)


@pytest.mark.parametrize(
    ("budget", "key", "values"),
    [
        ({"steps": 12}, "max_steps", [6, 12, 24]),
        ({"tokens": 32 * 128 * 10}, "max_steps", [None, None, None]),
        ({"flops": 1000}, "max_steps", [5, 10, 20]),
        ({"seconds": 3}, "max_time", [{"seconds": 1.5}, {"seconds": 3}, {"seconds": 6}]),
    ],
)
def test_the_baseline_is_trained_at_multiples_of_the_budget(
    plugin_index: Index, budget: dict[str, float], key: str, values: list[Any]
) -> None:
    result = planned(plugin_index, budget=budget)
    [curve] = result.curves
    assert list(curve.trials) == [0.5, 1.0, 2.0]
    trained = [trials[0].spec["trainer"][key] for trials in curve.trials.values()]
    if values[0] is None:
        assert trained[0] * 2 == trained[1] == trained[2] / 2
    else:
        assert trained == values
    assert curve.trials[1.0] == result.trials_of("baseline")
    assert [[trial.seed for trial in trials] for trials in curve.trials.values()] == [[0, 1]] * 3
    assert len(result.trials) == 2 * 4
    assert [variant.name for variant in result.variants] == ["baseline", "attention=mqa"]
    assert {trial.setting for trial in curve.trials[0.5]} == {"budget x 0.5"}
    assert {trial.variant for trials in curve.trials.values() for trial in trials} == {"baseline"}


def test_a_multiple_counts_as_it_is_run(plugin_index: Index) -> None:
    [curve] = planned(plugin_index, budget={"steps": 3}).curves
    steps = {factor: trials[0].spec["trainer"]["max_steps"] for factor, trials in curve.trials.items()}
    assert steps == {2 / 3: 2, 1.0: 3, 2.0: 6}


def test_every_stage_has_the_multiple_of_its_budget(plugin_index: Index) -> None:
    stages = {"pretrain": {"budget": {"steps": 20}}, "finetune": {"from": "pretrain", "budget": {"steps": 6}}}
    [curve] = planned(plugin_index, stages=stages).curves
    steps = [
        [trial.spec["trainer"]["max_steps"] for trial in trials if not trial.seed] for trials in curve.trials.values()
    ]
    assert steps == [[10, 3], [20, 6], [40, 12]]
    pretrain, finetune = (trial for trial in curve.trials[2.0] if not trial.seed)
    assert finetune.parent_id == pretrain.identity


def test_each_scale_has_its_curve(plugin_index: Index) -> None:
    scales = {"s": {"dims.width": 32}, "m": {"dims.width": 64}}
    result = planned(plugin_index, scales=scales, budget={"steps": 10})
    assert [curve.setting for curve in result.curves] == ["s", "m"]
    assert [curve.trials[0.5][0].spec["dims"]["width"] for curve in result.curves] == [32, 64]


def test_a_tuned_baseline_has_its_values_at_each_budget(plugin_index: Index) -> None:
    changes: dict[str, Any] = {"tune": {"optimizer.lr": [1e-4, 4e-3]}, "budget": {"steps": 10}}
    assert [curve.setting for curve in planned(plugin_index, **changes).curves] == ["same"]
    study = parse_study("mine", plain_tree({**STUDY, **changes}, "study"), plugin_index)
    result = plan(
        study,
        plugin_index,
        fingerprint=lambda spec: "text",
        score=lambda trial: trial.spec["optimizer"]["lr"],
    )
    assert [curve.setting for curve in result.curves] == ["same", "each at its best"]
    rates = [[trials[0].spec["optimizer"]["lr"] for trials in curve.trials.values()] for curve in result.curves]
    assert rates[1] == [1e-4] * 3
    assert len(set(rates[0])) == 1


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"budget": {"steps": 10}, "worth": [1]}, "unused-option"),
        ({"budget": {"steps": 10}, "worth": [0]}, "out-of-range"),
        ({"budget": {"steps": 1}, "worth": [0.5, 2]}, "duplicate-budget"),
        ({"budget": {"steps": 3}, "worth": [1.4, 1.5]}, "duplicate-budget"),
        ({"budget": {"steps": 10}, "stop": "when-decided", "seeds": 8}, "incompatible-options"),
        ({}, "missing"),
    ],
)
def test_what_has_no_answer_is_refused(plugin_index: Index, changes: dict[str, Any], code: str) -> None:
    with raises_problem(SpecError, code):
        planned(plugin_index, **changes)
