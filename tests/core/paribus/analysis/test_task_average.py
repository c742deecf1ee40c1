"""The average over tasks: its values, its certificate, and the family that it shares with the tasks."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest

from paribus.analysis.compare import compare_settings
from paribus.analysis.p_values import summarise
from paribus.analysis.table import Table
from paribus.analysis.task_average import Question, average_question
from paribus.analysis.trials import ComparisonSpec, TrialEntry
from paribus.analysis.verdicts import PairedDifferences, decide
from paribus.studies.study_keys import Metric
from paribus.studies.task_metrics import AVERAGE

Make = Callable[..., TrialEntry]
Ask = Callable[..., ComparisonSpec]

MQA = {"attention": "mqa"}
LOSS, ACCURACY = "val/mlm/loss", "val/mlm/accuracy"
FIRST = {"baseline": [0.50, 0.52, 0.48], "mqa": [0.60, 0.63, 0.59]}
SECOND = {"baseline": [0.20, 0.25, 0.21], "mqa": [0.10, 0.13, 0.12]}


def entries(make: Make, task: str, values: Mapping[str, Sequence[float]], **edits: Any) -> list[TrialEntry]:
    """Return the trials of a task with these accuracies."""
    trials = [
        make(
            variant,
            seed,
            varied=MQA if variant == "mqa" else {},
            edits={"result/metrics": {LOSS: 2.0, ACCURACY: value}, "result/training_flops": 10.0, **edits},
        )
        for variant, accuracies in values.items()
        for seed, value in enumerate(accuracies)
    ]
    for trial in trials:
        assert trial.record is not None
        trial.record["result"]["total_flops"] = 110.0
        trial.trial["stage"] = f"finetune/{task}"  # type: ignore[index]  # as above
        trial.trial["identity"] += task  # type: ignore[index]  # as above
        trial.record["identity"] += task  # type: ignore[index]  # as above
    return trials


def metrics(*names: str) -> list[Metric]:
    return [Metric(name=ACCURACY, better="higher", task=name, stage=f"finetune/{name}") for name in names]


def asked(ask: Ask, trials: list[TrialEntry], name: str) -> Question:
    return trials, ask(trials, metric=ACCURACY, better="higher", setting=name, stage=f"finetune/{name}")


@pytest.fixture
def questions(make: Make, ask: Ask) -> list[Question]:
    return [asked(ask, entries(make, "a", FIRST), "a"), asked(ask, entries(make, "b", SECOND), "b")]


def table_of(questions: Sequence[Question], average: Question) -> Table:
    trials, comparison = average
    return compare_settings([(trials, replace(comparison, setting=AVERAGE)), *questions])


def test_the_average_is_that_of_the_tasks_on_each_seed(questions: list[Question]) -> None:
    trials, comparison = average_question(questions, metrics("a", "b"))
    values = {(trial.variant, trial.seed): trial.value(AVERAGE) for trial in trials}
    assert values == pytest.approx(
        {
            (name, seed): (FIRST[name][seed] + SECOND[name][seed]) / 2
            for name in ("baseline", "mqa")
            for seed in range(3)
        }
    )
    assert comparison.metric == AVERAGE
    assert comparison.averaged == ("a", "b")


def test_two_metrics_of_a_task_count_as_their_mean(make: Make, ask: Ask, questions: list[Question]) -> None:
    third = asked(ask, entries(make, "b", {"baseline": [0.6, 0.6, 0.6], "mqa": [0.8, 0.8, 0.8]}), "b f1")
    trials, _ = average_question([*questions, third], metrics("a", "b", "b"))
    mqa = next(trial for trial in trials if (trial.variant, trial.seed) == ("mqa", 0))
    assert mqa.value(AVERAGE) == pytest.approx((0.60 + (0.10 + 0.8) / 2) / 2)


def test_the_tasks_and_their_average_are_one_family(questions: list[Question]) -> None:
    table = table_of(questions, average_question(questions, metrics("a", "b")))
    assert [setting.setting for setting in table.settings] == [AVERAGE, "a", "b"]
    pairs = {
        "a": [b - a for a, b in zip(FIRST["baseline"], FIRST["mqa"], strict=True)],
        "b": [b - a for a, b in zip(SECOND["baseline"], SECOND["mqa"], strict=True)],
    }
    pairs[AVERAGE] = [(a + b) / 2 for a, b in zip(pairs["a"], pairs["b"], strict=True)]
    expected = decide(
        {
            name: PairedDifferences(differences=tuple(differences), diverged=0, planned=3)
            for name, differences in pairs.items()
        },
        better="higher",
        margin=None,
    )
    for setting in table.settings:
        (row,) = setting.rows
        assert row.kind == expected[setting.setting].kind
        assert row.difference == pytest.approx(summarise(pairs[setting.setting]).mean)
        assert (row.low, row.high) == pytest.approx((expected[setting.setting].low, expected[setting.setting].high))
    assert [setting.rows[0].kind for setting in table.settings] == ["inconclusive", "better", "worse"]


def test_a_fault_in_one_task_withholds_the_average(make: Make, ask: Ask, questions: list[Question]) -> None:
    faulty = entries(make, "b", SECOND)
    for trial in faulty:
        if trial.variant == "mqa":
            assert trial.record is not None
            trial.record["result"]["certificate"]["batches"] = "other"
            trial.record["result"]["certificate"]["batch_digests"] = {"0": "other"}
    pair = [questions[0], asked(ask, faulty, "b")]
    table = table_of(pair, average_question(pair, metrics("a", "b")))
    average, first, second = (setting.rows[0] for setting in table.settings)
    assert first.kind != "withheld"
    assert second.kind == average.kind == "withheld"
    certificate = table.certificates["mqa"]
    assert any("(in b)" in failure for failure in certificate.failures)


def test_a_seed_without_one_task_has_no_average(make: Make, ask: Ask, questions: list[Question]) -> None:
    second = [
        replace(trial, record=None, state="failed") if (trial.variant, trial.seed) == ("mqa", 1) else trial
        for trial in questions[1][0]
    ]
    pair = [questions[0], asked(ask, second, "b")]
    table = table_of(pair, average_question(pair, metrics("a", "b")))
    assert [setting.rows[0].n for setting in table.settings] == [2, 3, 2]
    assert table.rows[0].failed == 1


def test_an_average_with_an_infinite_metric_diverged(make: Make, ask: Ask, questions: list[Question]) -> None:
    second = entries(make, "b", {**SECOND, "mqa": [0.1, math.nan, 0.1]})
    pair = [questions[0], asked(ask, second, "b")]
    table = table_of(pair, average_question(pair, metrics("a", "b")))
    assert table.rows[0].kind == "diverged"


def test_the_cost_of_an_average_counts_a_common_pretraining_once(questions: list[Question]) -> None:
    trials, _ = average_question(questions, metrics("a", "b"))
    assert {trial.result["total_flops"] for trial in trials} == {120.0}


@pytest.mark.parametrize(("unlearned", "learned"), [((), True), (("b",), True), (("a", "b"), False)])
def test_an_average_has_learned_if_half_of_its_tasks_have(
    make: Make, ask: Ask, unlearned: tuple[str, ...], learned: bool
) -> None:
    pair = []
    for name, values in (("a", FIRST), ("b", SECOND)):
        loss = 3.3 if name in unlearned else 2.0
        edits = {"result/curve": [{"step": 8, LOSS: loss}]}
        pair.append(asked(ask, entries(make, name, values, **edits), name))
    trials, _ = average_question(pair, metrics("a", "b"))
    assert {trial.has_learned(AVERAGE) for trial in trials} == {learned}
