"""Ladders and leave-one-out designs: their variants and their errors."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.fixtures.problems import raises_problem

from paribus.analysis.api import rungs_below
from paribus.errors import SpecError
from paribus.planning.plan import Plan, plan
from paribus.registry import Index
from paribus.specs.tree import plain_tree
from paribus.specs.yaml_reader import read_file
from paribus.studies.designs import BASELINE, DESIGNS, Variation, baseline, effective_changes, variant_count
from paribus.studies.study import parse_study

keys = st.sampled_from(["attention", "norm", "position", "optimizer.lr", "dims.width"])
written = st.lists(st.dictionaries(keys, st.sampled_from(["a", "b", "c"]), min_size=1), min_size=1, max_size=6)


def planned(plugin_index: Index, **changes: Any) -> Plan:
    study = {"base": "bert-tiny", "seeds": 2, "budget": {"steps": 10}, "metric": {"name": "val/mlm/loss"}}
    read = parse_study("mine", plain_tree({**study, "evaluate": ["mlm"], **changes}, "study"), plugin_index)
    return plan(read, plugin_index, fingerprint=lambda spec: "text")


@pytest.mark.thorough
@given(written)
def test_a_rung_is_the_base_with_all_changes_up_to_it(changes: list[dict[str, str]]) -> None:
    varied = Variation(changes=changes)
    rungs = list(DESIGNS["ladder"](varied))
    assert variant_count("ladder", varied) == len(rungs) == len(changes)
    for place, rung in enumerate(rungs):
        assert rung.changes == tuple(pair for item in changes[: place + 1] for pair in item.items())
        assert rung.previous == (rungs[place - 1].name if place else BASELINE)
        assert rung.is_explicit


@pytest.mark.thorough
@given(written)
def test_each_variant_removes_one_change_from_the_full_model(changes: list[dict[str, str]]) -> None:
    varied = Variation(changes=changes)
    variants = list(DESIGNS["leave-one-out"](varied))
    assert variant_count("leave-one-out", varied) == len(variants) == len(changes)
    full = baseline("leave-one-out", varied)
    assert full.changes == tuple(pair for item in changes for pair in item.items())
    for place, variant in enumerate(variants):
        assert variant.changes == tuple(
            pair for second, item in enumerate(changes) if second != place for pair in item.items()
        )


def test_axes_are_changes_too_value_after_value() -> None:
    varied = Variation(vary={"position": ["learned", "rope"], "norm": ["rmsnorm"]})
    rungs = list(DESIGNS["ladder"](varied))
    assert [rung.name for rung in rungs] == ["+ position=learned", "+ position=rope", "+ norm=rmsnorm"]
    assert effective_changes(rungs[-1].changes) == {"position": "rope", "norm": "rmsnorm"}


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ([("norm", "rmsnorm"), ("norm", "layernorm")], {"norm": "layernorm"}),
        (
            [("feedforward", {"name": "glu", "inner": 96}), ("feedforward.inner", 64)],
            {"feedforward": {"name": "glu", "inner": 64}, "feedforward.inner": 64},
        ),
        ([("feedforward.activation", "gelu"), ("feedforward", "glu")], {"feedforward": "glu"}),
        ([("attention", ["mha", "mqa"]), ("attention.0", "gqa")], {"attention": ["gqa", "mqa"], "attention.0": "gqa"}),
        (
            [("feedforward", {"expand": 3}), ("feedforward", {"activation": "silu"})],
            {"feedforward": {"expand": 3, "activation": "silu"}},
        ),
        ([("feedforward", {"name": "glu"}), ("feedforward", {"name": "mlp"})], {"feedforward": {"name": "mlp"}}),
    ],
)
def test_a_later_change_overrides_an_earlier_one(changes: list[tuple[str, Any]], expected: dict[str, Any]) -> None:
    previous = [(key, value) for key, value in changes]
    assert effective_changes(changes) == expected
    assert changes == previous, "what the study says is not changed"


MODERN: list[dict[str, Any]] = [
    {"name": "one objective", "objective": {"name": "mlm", "rate": 0.15}, "embedding": {"segments": 0}},
    {"placement": "pre", "embedding.normed": False},
    {"position": "rope"},
    {"feedforward": {"name": "glu", "activation": "gelu", "inner": 170}},
    {"feedforward.inner": 128},
]


def test_a_ladder_goes_from_one_recipe_to_another(plugin_index: Index) -> None:
    result = planned(plugin_index, design="ladder", changes=MODERN)
    names = [variant.name for variant in result.variants]
    assert names[:3] == [BASELINE, "one objective", "+ placement=pre embedding.normed=false"]
    top = result.trials_of(names[-1])[0]
    assert (top.spec["placement"]["name"], top.spec["feedforward"]["inner"]) == ("pre", 128)
    assert top.changes["feedforward"]["inner"] == 128
    assert rungs_below(result.setting()) == dict(zip(names[1:], names[:-1], strict=True))
    assert len(result.trials) == 2 * 6


def test_a_rung_that_equals_an_earlier_one_is_excluded(plugin_index: Index) -> None:
    changes = [{"norm": "rmsnorm"}, {"name": "back", "norm": "layernorm", "norm.eps": 1e-12}, {"position": "rope"}]
    result = planned(plugin_index, design="ladder", changes=changes)
    assert [(cell.variant, cell.same_as) for cell in result.excluded] == [("back", BASELINE)]
    assert rungs_below(result.setting()) == {"+ norm=rmsnorm": BASELINE, "+ position=rope": BASELINE}


def test_leave_one_out_has_one_trial_more_than_changes_per_seed(plugin_index: Index) -> None:
    result = planned(plugin_index, design="leave-one-out", changes=MODERN[1:4])
    assert len(result.trials) == 2 * (3 + 1)
    full = result.trials_of(BASELINE)[0]
    assert set(full.changes) == {"placement", "embedding.normed", "position", "feedforward"}
    without = result.trials_of("without position=rope")[0]
    assert {key for key in full.spec if full.spec[key] != without.spec[key]} == {"position"}


FAULTS = [
    ({"design": "ladder", "variants": [{"norm": "rmsnorm"}]}, "unused-option", ("variants", "changes", "vary")),
    ({"design": "grid", "changes": MODERN}, "unused-option", ("changes", "vary", "design: ladder")),
    ({"design": "ladder"}, "empty", ("changes", "norm: rmsnorm")),
    ({"design": "ladder", "changes": MODERN, "vary": {"norm": ["rmsnorm"]}}, "too-many", ("changes", "vary")),
    ({"design": "ladder", "changes": [{"name": "nothing"}]}, "empty", ("nothing",)),
    ({"design": "ladder", "changes": {"norm": "rmsnorm"}}, "wrong-type", ("changes",)),
    (
        {"design": "ladder", "changes": [{"name": "baseline", "norm": "rmsnorm"}]},
        "bad-name",
        ("changes.0.name", "baseline"),
    ),
    ({"design": "leave-one-out", "vary": {"norm": ["rmsnorm", "none"]}}, "too-many", ("vary.norm",)),
    ({"design": "ladder", "changes": [{"norm": "rmsnrom"}]}, "unknown-component", ("rmsnorm",)),
    ({"design": "leave-one-out", "changes": [{"norm": "rmsnrom"}]}, "unknown-component", ("rmsnorm",)),
]


@pytest.mark.parametrize(("changes", "code", "values"), FAULTS)
def test_keys_that_a_design_does_not_read_are_refused(
    plugin_index: Index, changes: dict[str, Any], code: str, values: tuple[str, ...]
) -> None:
    with raises_problem(SpecError, code, *values) as caught:
        planned(plugin_index, **changes)
    assert caught.value.exit_code == 2


def test_an_error_in_a_rung_has_its_line(plugin_index: Index, tmp_path: Path) -> None:
    path = tmp_path / "study.yaml"
    path.write_text(
        "base: bert-tiny\ndesign: ladder\nchanges:\n  - norm: rmsnorm\n  - position: rop\nmetric: val/mlm/loss\n"
    )
    read = parse_study("mine", read_file(path, "study.yaml"), plugin_index)
    with raises_problem(SpecError, "unknown-component", "position", "study.yaml:5", "rope"):
        plan(read, plugin_index, fingerprint=lambda spec: "text")
