"""Cells of a product that a study leaves out: by what their specs say, with a reason, and never by a slip."""

from __future__ import annotations

from typing import Any

import pytest

from paribus.errors import SpecError
from paribus.registry import Index, index
from paribus.specs.guard import plain
from paribus.studies.designs import BASELINE
from paribus.studies.plan import Plan, plan
from paribus.studies.study import study_of

GRID: dict[str, Any] = {
    "base": "encoder-tiny",
    "design": "grid",
    "vary": {"attention": ["mqa", {"name": "gqa", "kv_heads": 2}], "norm": ["layernorm", "rmsnorm"]},
    "seeds": 1,
    "budget": {"steps": 10},
    "metric": {"name": "val/mlm/loss"},
}


@pytest.fixture(scope="session")
def known() -> Index:
    return index()


def planned(known: Index, **said: Any) -> Plan:
    read = study_of("mine", plain({**GRID, **said}, "study"), known)
    return plan(read, known, fingerprint=lambda spec: "text")


@pytest.mark.parametrize(
    "attention", ["gqa", {"kv_heads": 2}, {"name": "gqa", "kv_heads": 2}], ids=["name", "option", "both"]
)
def test_a_cell_is_left_out_with_its_reason(known: Index, attention: Any) -> None:
    found = planned(known, exclude=[{"attention": attention, "norm": "rmsnorm", "reason": "was run last year"}])
    assert [(each.variant, each.why) for each in found.excluded] == [
        ("attention=gqa(kv_heads=2) norm=rmsnorm", "was run last year")
    ]
    assert [variant.name for variant in found.variants] == [
        BASELINE,
        "attention=mqa norm=layernorm",
        "attention=mqa norm=rmsnorm",
        "attention=gqa(kv_heads=2) norm=layernorm",
    ]


def test_without_a_reason_it_is_said_which_exclusion_it_was(known: Index) -> None:
    found = planned(known, exclude=[{"norm": "rmsnorm"}])
    assert {each.why for each in found.excluded} == {"left out by `exclude`: norm=rmsnorm"}
    assert len(found.excluded) == 2


def test_what_the_base_says_is_part_of_a_cell(known: Index) -> None:
    found = planned(known, exclude=[{"dims.width": 64, "attention": "mqa", "norm": "rmsnorm"}])
    assert [each.variant for each in found.excluded] == ["attention=mqa norm=rmsnorm"]


def test_the_baseline_is_no_cell_that_could_be_left_out(known: Index) -> None:
    found = planned(known, vary={"norm": ["layernorm", "rmsnorm"]}, exclude=[{"norm": "layernorm"}])
    assert [variant.name for variant in found.variants] == [BASELINE, "norm=rmsnorm"]


def test_a_cell_that_cannot_be_may_be_left_out_with_a_better_reason(known: Index) -> None:
    vary = {"dims.heads": [3, 4], "attention": ["mha", "mqa"]}
    found = planned(known, vary=vary, exclude=[{"dims.heads": 3, "attention": "mqa", "reason": "three is odd"}])
    why = {each.variant: each.why for each in found.excluded}
    assert why["dims.heads=3 attention=mqa"] == "three is odd"
    assert "multiple" in why["dims.heads=3 attention=mha"]


FAULTS = [
    ({"exclude": [{"attention": "mha", "norm": "rmsnorm"}]}, "no cell with attention=mha norm=rmsnorm"),
    ({"exclude": [{"atention": "mqa"}]}, "no cell with atention=mqa, so this leaves nothing out"),
    ({"exclude": {"norm": "rmsnorm"}}, "`exclude` is a list of mappings"),
    ({"exclude": [{"reason": "all of it"}]}, "this would leave out every cell"),
    ({"exclude": [{"norm": "rmsnorm", "reason": 3}]}, "valid: a sentence"),
    ({"exclude": [{"norm": "rmsnorm"}], "design": "one-at-a-time"}, "has only what is written down.*design: grid"),
]


@pytest.mark.parametrize(("said", "words"), FAULTS)
def test_an_exclusion_that_would_not_do_what_it_says_is_refused(known: Index, said: dict[str, Any], words: str) -> None:
    with pytest.raises(SpecError, match=words):
        planned(known, **said)
