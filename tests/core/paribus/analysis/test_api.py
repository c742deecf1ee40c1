"""Comparison specs of ladders, leave-one-out studies and factorials."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import paribus
from paribus.analysis.api import comparison_spec

CHANGES = [{"norm": "rmsnorm"}, {"name": "gated", "feedforward": {"name": "glu", "inner": 128}}, {"dropout": 0.1}]


@pytest.fixture
def make_spec(tmp_path: Path) -> Any:
    def build(**options: Any) -> Any:
        study = {"base": "encoder-tiny", "budget": {"steps": 2}, "seeds": 2, "metric": {"name": "val/mlm/loss"}}
        return comparison_spec(paribus.study({**study, **options}, store=tmp_path))

    return build


def test_the_spec_of_a_ladder_names_the_rung_below(make_spec: Any) -> None:
    comparison = make_spec(design="ladder", changes=CHANGES)
    assert comparison.rungs_below == {"+ norm=rmsnorm": "baseline", "gated": "+ norm=rmsnorm", "+ dropout=0.1": "gated"}
    assert comparison.factorial is None
    assert "the lowest is baseline" in comparison.design_note


def test_leave_one_out_describes_its_baseline(make_spec: Any) -> None:
    comparison = make_spec(design="leave-one-out", changes=CHANGES)
    assert comparison.design_note.startswith(
        "The baseline is the full model, with every change (norm=rmsnorm, gated, dropout"
    )
    assert [*comparison.variants["baseline"]] == ["norm", "feedforward", "dropout"]
    assert comparison.swapped == ("without norm=rmsnorm", "without gated", "without dropout=0.1")
    assert comparison.rungs_below == {}


def test_the_spec_of_a_factorial_names_missing_cells(make_spec: Any) -> None:
    comparison = make_spec(
        design="factorial", changes=CHANGES, exclude=[{"norm": "rmsnorm", "dropout": 0.1, "reason": "no"}]
    )
    assert comparison.factorial.factors == (("norm=rmsnorm",), ("gated",), ("dropout=0.1",))
    assert len(comparison.factorial.cells) == 6
    assert {name for name, reason in comparison.excluded if reason == "no"} == {
        "norm=rmsnorm + dropout=0.1",
        "norm=rmsnorm + gated + dropout=0.1",
    }
    assert "combinations of 3 factors" in comparison.design_note
