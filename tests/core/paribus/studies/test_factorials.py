"""Factorials: every combination of levels or a fraction of them, and what is known of each cell."""

from __future__ import annotations

import itertools
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.fixtures.problems import raises_problem

from paribus.analysis.factorial import factorial_cells
from paribus.errors import SpecError
from paribus.planning.plan import Plan, plan
from paribus.registry import Index
from paribus.specs.tree import plain_tree
from paribus.studies.designs import BASELINE, DESIGNS, Variation, describe_design, variant_count
from paribus.studies.fractional_factorial import is_possible
from paribus.studies.study import parse_study

STUDY: dict[str, Any] = {
    "base": "encoder-tiny",
    "design": "factorial",
    "seeds": 2,
    "budget": {"steps": 10},
    "metric": {"name": "val/mlm/loss"},
}
CHANGES: list[dict[str, Any]] = [
    {"norm": "rmsnorm"},
    {"name": "gated", "feedforward": {"name": "glu", "inner": 170}},
    {"attention": "mqa"},
    {"dropout": 0.1},
]

axes = st.dictionaries(
    st.sampled_from(["attention", "norm", "position", "dropout"]),
    st.lists(st.sampled_from(["a", "b", "c"]), min_size=1, max_size=3, unique=True),
    min_size=1,
)


def planned(plugin_index: Index, **said: Any) -> Plan:
    read = parse_study("mine", plain_tree({**STUDY, **said}, "study"), plugin_index)
    return plan(read, plugin_index, fingerprint=lambda spec: "text")


@given(axes)
def test_axes_are_crossed_with_the_base_as_a_level_of_each(vary: dict[str, list[str]]) -> None:
    varied = Variation(vary=vary)
    result = {variant.changes for variant in DESIGNS["factorial"](varied)}
    levels = [[None, *((key, value) for value in values)] for key, values in vary.items()]
    cells = {tuple(item for item in cell if item) for cell in itertools.product(*levels)}
    assert result == cells - {()}
    assert variant_count("factorial", varied) == len(result) == math.prod(len(level) for level in levels) - 1
    assert not any(variant.is_explicit for variant in DESIGNS["factorial"](varied))


@given(st.integers(2, 6), st.integers(0, 3))
def test_a_fraction_contains_the_baseline(factors: int, halvings: int) -> None:
    if halvings and not is_possible(factors, halvings):
        return
    varied = Variation(changes=[{f"dims.{letter}": 1} for letter in "abcdef"[:factors]], fraction=2**halvings)
    result = list(DESIGNS["factorial"](varied))
    assert (
        variant_count("factorial", varied)
        == len(result)
        == len({item.changes for item in result})
        == 2 ** (factors - halvings) - 1
    )
    assert all(item.changes for item in result)


def test_every_design_has_its_number_of_variants() -> None:
    varied = {
        "list": Variation(variants=CHANGES),
        **{design: Variation(changes=CHANGES) for design in ("ladder", "leave-one-out", "factorial")},
        **{design: Variation(vary={"norm": ["a", "b"], "dropout": [1]}) for design in ("grid", "one-at-a-time")},
    }
    assert set(varied) == set(DESIGNS)
    assert {design: variant_count(design, item) for design, item in varied.items()} == {
        design: len(list(DESIGNS[design](item))) for design, item in varied.items()
    }


def test_a_factorial_of_changes_has_each_on_and_off(plugin_index: Index) -> None:
    result = planned(plugin_index, changes=CHANGES[:2])
    assert [variant.name for variant in result.variants] == [BASELINE, "gated", "norm=rmsnorm", "norm=rmsnorm + gated"]
    assert len(result.trials) == 2 * 4


def test_the_cells_of_a_plan_are_those_of_the_table(plugin_index: Index) -> None:
    result = planned(plugin_index, vary={"norm": ["rmsnorm", "none"], "attention": ["mqa"]})
    crossed = factorial_cells(result.study.varied, result.setting())
    assert crossed.counts == [3, 2]
    assert crossed.cells[2, 1] == "norm=none + attention=mqa"
    assert crossed.cells[0, 0] == BASELINE
    assert (len(crossed.cells), crossed.missing) == (6, {})


def test_invalid_and_excluded_cells_are_reported_and_counted_as_missing(plugin_index: Index) -> None:
    vary = {"dims.heads": [3], "attention": ["mqa"], "norm": ["rmsnorm"]}
    exclude = [{"dims.heads": 4, "attention": "mqa", "norm": "rmsnorm", "reason": "too dear"}]
    result = planned(plugin_index, vary=vary, exclude=exclude)
    caught = {cell.variant: cell.reason for cell in result.excluded}
    assert caught.pop("attention=mqa + norm=rmsnorm") == "too dear"
    assert len(caught) == 4
    assert all("multiple" in reason for reason in caught.values())
    crossed = factorial_cells(result.study.varied, result.setting())
    assert crossed.missing[0, 1, 1] == "attention=mqa + norm=rmsnorm is excluded"
    assert (len(crossed.cells), len(crossed.missing)) == (3, 5)


def test_a_fraction_is_described_with_its_aliases_and_resolution(plugin_index: Index) -> None:
    result = planned(plugin_index, changes=CHANGES, fraction="1/2")
    assert len(result.variants) == 8
    options = describe_design("factorial", result.study.varied)
    assert "8 of 16 combinations of 4 factors, a fraction of resolution IV" in options
    assert "dropout=0.1 is on where an odd number of norm=rmsnorm, gated, attention=mqa are" in options
    pair = "norm=rmsnorm × gated = attention=mqa × dropout=0.1"  # noqa: RUF001  # the sign that the table has
    assert pair in options
    assert options.count(" = ") == 3


FAULTS = [
    ({"changes": CHANGES, "fraction": "1/4"}, "invalid-fraction", ("fraction", "4", "1/2")),
    ({"changes": CHANGES, "fraction": "1/3"}, "invalid-fraction", ("1/3",)),
    ({"changes": CHANGES, "fraction": "half"}, "invalid-fraction", ("half",)),
    ({"changes": CHANGES, "fraction": [2]}, "invalid-fraction", ("a list",)),
    ({"changes": CHANGES[:2], "fraction": "1/2"}, "invalid-fraction", ("1/2", "2")),
    ({"changes": CHANGES, "fraction": "1/2", "design": "ladder"}, "unused-option", ("ladder",)),
    ({"vary": {"norm": ["rmsnorm", "none"], "dropout": [0.1]}, "fraction": "1/2"}, "invalid-fraction", ("norm", "3")),
    ({"vary": {"norm": ["layernorm"], "dropout": [0.1]}}, "level-without-effect", ("norm=layernorm",)),
    ({"changes": [{"norm": "rmsnorm"}, {"norm": "none"}]}, "not-free", ("norm=rmsnorm", "norm")),
    (
        {"changes": [{"feedforward.expand": 2}, {"feedforward": "glu"}]},
        "not-free",
        ("feedforward.expand",),
    ),
]


@pytest.mark.parametrize(("said", "code", "values"), FAULTS)
def test_an_invalid_factorial_is_refused(
    plugin_index: Index, said: dict[str, Any], code: str, values: tuple[str, ...]
) -> None:
    with raises_problem(SpecError, code, *values) as caught:
        planned(plugin_index, **said)
    assert caught.value.exit_code == 2


def test_too_many_cells_are_counted_before_any_is_made(plugin_index: Index) -> None:
    changes = [{f"dims.width{number}": 1} for number in range(60)]
    with raises_problem(SpecError, "too-many-trials", "2,305,843,009,213,693,952", "changes: 60", "seeds: 2"):
        planned(plugin_index, changes=changes)


def test_half_may_be_written_as_a_number(plugin_index: Index) -> None:
    assert len(planned(plugin_index, changes=CHANGES, fraction=0.5).variants) == 8
