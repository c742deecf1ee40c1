"""The mean of the last evaluations of a trial, from its record."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
from tests.fixtures.problems import raises_problem

from paribus.analysis.trials import TrialEntry
from paribus.errors import SpecError
from paribus.planning.last_evaluations import with_last_mean
from paribus.planning.tuning import score_of

Make = Callable[..., TrialEntry]

LOSS, OTHER = "val/mlm/loss", "val/mlm/accuracy"
CURVE = [
    {"step": 1, LOSS: "nan", OTHER: 0.1},
    {"step": 2, LOSS: 3.0, OTHER: 0.2},
    {"step": 3, LOSS: 2.0, OTHER: 0.3},
    {"step": 4, LOSS: 4.0, OTHER: 0.4},
]


@pytest.fixture
def record(make: Make) -> dict[str, Any]:
    entry = make(edits={"result/curve": CURVE, "result/metrics": {LOSS: 4.0, OTHER: 0.4}})
    assert entry.record is not None
    return dict(entry.record)


@pytest.mark.parametrize(("last", "value"), [(1, 4.0), (2, 3.0), (3, 3.0), (4, math.nan), (5, None)])
def test_the_metric_is_the_mean_of_the_last_evaluations(record: dict[str, Any], last: int, value: float | None) -> None:
    metrics = with_last_mean(record, LOSS, last)["result"]["metrics"]
    assert metrics.get(LOSS) == (value if value is None else pytest.approx(value, nan_ok=True))
    assert metrics[OTHER] == 0.4  # of another metric, the last evaluation


def test_a_program_that_measured_a_value_that_is_not_finite_has_no_mean() -> None:
    points = [{"step": 1, "loss": 3.0}, {"step": 2}, {"step": 3, "loss": 2.0}]
    result = {"state": "done", "metrics": {"loss": 2.0}, "curve": points}
    record = {"spec": {"program": {"metric": {"name": "loss"}}}, "result": result}
    assert math.isnan(with_last_mean(record, "loss", 2)["result"]["metrics"]["loss"])


def test_a_trial_that_diverged_in_its_last_evaluations_counts_as_diverged(make: Make) -> None:
    curve = [{"step": 1, LOSS: "inf"}, {"step": 2, LOSS: 2.0}]
    entry = make(edits={"result/curve": curve})
    assert entry.record is not None
    averaged = make(edits={"result/metrics": with_last_mean(entry.record, LOSS, 2)["result"]["metrics"]})
    assert (entry.diverged(LOSS), averaged.diverged(LOSS), averaged.value(LOSS)) == (False, True, None)


def test_tuning_selects_by_the_same_mean(record: dict[str, Any]) -> None:
    assert score_of(record, LOSS, last=2) == 3.0
    with raises_problem(SpecError, "too-few-evaluations", "1 to 4"):
        score_of(record, LOSS, last=5)
