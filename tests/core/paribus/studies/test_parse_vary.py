"""Cells of a product that a study leaves out: by what their specs say, with a reason, and never by a slip."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from tests.fixtures.problems import raises_problem

from paribus.errors import SpecError
from paribus.planning.plan import Plan
from paribus.studies.designs import BASELINE

VARY: dict[str, Any] = {"attention": ["mqa", {"name": "gqa", "kv_heads": 2}], "norm": ["layernorm", "rmsnorm"]}
Grid = Callable[..., Plan]


@pytest.mark.parametrize(
    "attention", ["gqa", {"kv_heads": 2}, {"name": "gqa", "kv_heads": 2}], ids=["name", "option", "both"]
)
def test_a_cell_is_excluded_with_its_reason(grid: Grid, attention: Any) -> None:
    result = grid(vary=VARY, exclude=[{"attention": attention, "norm": "rmsnorm", "reason": "was run last year"}])
    assert [(cell.variant, cell.reason) for cell in result.excluded] == [
        ("attention=gqa(kv_heads=2) norm=rmsnorm", "was run last year")
    ]
    assert [variant.name for variant in result.variants] == [
        BASELINE,
        "attention=mqa norm=layernorm",
        "attention=mqa norm=rmsnorm",
        "attention=gqa(kv_heads=2) norm=layernorm",
    ]


def test_an_exclusion_without_a_reason_is_named(grid: Grid) -> None:
    result = grid(vary=VARY, exclude=[{"norm": "rmsnorm"}])
    assert {cell.reason for cell in result.excluded} == {"excluded by `exclude`: norm=rmsnorm"}
    assert len(result.excluded) == 2


def test_the_values_of_the_base_are_part_of_a_cell(grid: Grid) -> None:
    result = grid(vary=VARY, exclude=[{"dims.width": 64, "attention": "mqa", "norm": "rmsnorm"}])
    assert [cell.variant for cell in result.excluded] == ["attention=mqa norm=rmsnorm"]


def test_the_baseline_cannot_be_excluded(grid: Grid) -> None:
    result = grid(vary={"norm": ["layernorm", "rmsnorm"]}, exclude=[{"norm": "layernorm"}])
    assert [variant.name for variant in result.variants] == [BASELINE, "norm=rmsnorm"]


def test_an_invalid_cell_may_be_excluded_with_a_written_reason(grid: Grid) -> None:
    vary = {"dims.heads": [3, 4], "attention": ["mha", "mqa"]}
    result = grid(vary=vary, exclude=[{"dims.heads": 3, "attention": "mqa", "reason": "three is odd"}])
    reason = {cell.variant: cell.reason for cell in result.excluded}
    assert reason["dims.heads=3 attention=mqa"] == "three is odd"
    assert "multiple" in reason["dims.heads=3 attention=mha"]


FAULTS = [
    (
        {"exclude": [{"attention": "mha", "norm": "rmsnorm"}]},
        "exclusion-without-match",
        ("attention=mha", "norm=rmsnorm"),
    ),
    ({"exclude": [{"atention": "mqa"}]}, "exclusion-without-match", ("atention=mqa",)),
    ({"exclude": {"norm": "rmsnorm"}}, "wrong-type", ("exclude",)),
    ({"exclude": [{"reason": "all of it"}]}, "empty", ("exclude.0",)),
    ({"exclude": [{"norm": "rmsnorm", "reason": 3}]}, "wrong-type", ("exclude.0.reason", "3")),
    ({"exclude": [{"norm": "rmsnorm"}], "design": "one-at-a-time"}, "unused-option", ("exclude", "design: grid")),
]


@pytest.mark.parametrize(("said", "code", "values"), FAULTS)
def test_an_exclusion_without_effect_is_refused(
    grid: Grid, said: dict[str, Any], code: str, values: tuple[str, ...]
) -> None:
    with raises_problem(SpecError, code, *values):
        grid(**{"vary": VARY, **said})
