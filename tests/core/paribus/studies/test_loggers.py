"""The key `loggers` of a study."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.fixtures.problems import raises_problem

from paribus.errors import SpecError
from paribus.registry import Index
from paribus.specs.tree import Tree
from paribus.studies.study import parse_study
from paribus.train import trial_options

WHOLE = {"base": "encoder-tiny", "vary": {"norm": ["rmsnorm"]}, "metric": "val/mlm/loss"}


def read(plugin_index: Index, **changes: Any) -> Any:
    return parse_study("mine", Tree({**WHOLE, **changes}), plugin_index).loggers


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (None, ()),
        ("csv", ({"name": "csv"},)),
        (["csv"], ({"name": "csv"},)),
        ([{"name": "csv", "flush_logs_every_n_steps": 5}], ({"name": "csv", "flush_logs_every_n_steps": 5},)),
    ],
)
def test_loggers_are_names_or_names_with_options(plugin_index: Index, value: Any, expected: Any) -> None:
    assert read(plugin_index, loggers=value) == expected


@pytest.mark.parametrize(
    ("value", "code", "values"),
    [
        (["cvs"], "unknown-logger", ("cvs", "csv")),
        ([3], "wrong-type", ("loggers.0", "3")),
        ([{"name": "csv", "flush": 1}], "unknown-key", ("flush", "flush_logs_every_n_steps")),
        (
            [{"name": "csv", "flush_logs_every_n_steps": "often"}],
            "wrong-type",
            ("loggers.0.flush_logs_every_n_steps",),
        ),
        (["csv", "csv"], "too-many", ("loggers", "csv")),
    ],
)
def test_an_invalid_logger_is_reported(plugin_index: Index, value: Any, code: str, values: tuple[str, ...]) -> None:
    with raises_problem(SpecError, code, *values):
        read(plugin_index, loggers=value)


def test_a_missing_package_is_reported_before_anything_runs(
    plugin_index: Index, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trial_options, "find_spec", lambda name: None)
    with raises_problem(SpecError, "not-installed", "wandb", "paribus[wandb]"):
        read(plugin_index, loggers=["wandb"])


def test_a_study_is_the_same_with_loggers_and_without(plugin_index: Index, tmp_path: Path) -> None:
    from paribus.planning.api import study

    plans = [study({**WHOLE, "seeds": 2, **options}, store=tmp_path).plan for options in ({}, {"loggers": ["csv"]})]
    assert [trial.identity for trial in plans[0].trials] == [trial.identity for trial in plans[1].trials]
