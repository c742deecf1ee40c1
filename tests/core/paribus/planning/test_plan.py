"""A plan has every trial once, the same in every process, and excluded variants with their reasons."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from tests.fixtures.problems import raises_problem

from paribus.errors import SpecError
from paribus.planning.identity import identity_of, source_hash
from paribus.planning.plan import Plan, plan
from paribus.registry import Index
from paribus.specs.components import components_of
from paribus.specs.tree import plain_tree
from paribus.storage.code_hash import CodeHashes, closure
from paribus.studies.designs import BASELINE
from paribus.studies.study import parse_study

STUDY: Mapping[str, Any] = {
    "base": "encoder-tiny",
    "vary": {"attention": ["mqa", {"name": "gqa", "kv_heads": 2}], "norm": ["rmsnorm"]},
    "seeds": 3,
    "budget": {"steps": 10},
    "metric": {"name": "val/mlm/loss"},
}


def planned(plugin_index: Index, limit: int = 10_000, **changes: Any) -> Plan:
    study = parse_study("mine", plain_tree({**STUDY, **changes}, "study"), plugin_index)
    return plan(study, plugin_index, fingerprint=lambda spec: "text", max_trials=limit)


def test_every_variant_has_every_seed(plugin_index: Index) -> None:
    result = planned(plugin_index)
    assert [variant.name for variant in result.variants] == [
        BASELINE,
        "attention=mqa",
        "attention=gqa(kv_heads=2)",
        "norm=rmsnorm",
    ]
    assert {(trial.variant, trial.seed) for trial in result.trials} == {
        (variant.name, seed) for variant in result.variants for seed in (0, 1, 2)
    }
    assert len({trial.identity for trial in result.trials}) == len(result.trials)


def test_an_early_stop_leaves_whole_pairs(plugin_index: Index) -> None:
    result = planned(plugin_index)
    count = len(result.variants)
    assert [trial.seed for trial in result.trials[:count]] == [0] * count


def test_a_variant_differs_from_the_base_in_what_it_varies_and_nothing_else(plugin_index: Index) -> None:
    result = planned(plugin_index)
    base = result.trials_of(BASELINE)[0].spec
    for variant in result.variants[1:]:
        spec = result.trials_of(variant.name)[0].spec
        assert {key for key in base if base[key] != spec[key]} == {key for key, _ in variant.changes}


def test_a_variant_that_equals_the_base_is_excluded(plugin_index: Index) -> None:
    result = planned(plugin_index, vary={"attention": ["mha", "mqa"]})
    assert [(cell.variant, cell.reason) for cell in result.excluded] == [
        ("attention=mha", "the same spec as baseline: it would change nothing")
    ]


@pytest.mark.parametrize("values", [["mqa", "mqa"], ["mqa", {"name": "mqa"}], ["mqa", "mha", "mqa"]])
@pytest.mark.parametrize("design", ["one-at-a-time", "grid"])
def test_a_duplicate_variant_runs_once_with_a_reason(plugin_index: Index, values: list[Any], design: str) -> None:
    result = planned(plugin_index, vary={"attention": values}, design=design)
    assert [variant.name for variant in result.variants] == [BASELINE, "attention=mqa"]
    assert len(result.trials) == len({trial.identity for trial in result.trials}) == 2 * 3
    assert [cell.reason for cell in result.excluded if cell.variant == "attention=mqa"] == [
        "the same spec as attention=mqa: it is run once"
    ]


def test_two_variants_of_one_name_are_refused(plugin_index: Index) -> None:
    cycle = ["mha", "mqa"] * 10
    base = {"preset": "encoder-tiny", "dims.layers": 21}
    with raises_problem(SpecError, "duplicate-variant", "vary"):
        planned(plugin_index, base=base, vary={"attention": [[*cycle, "mha"], [*cycle, "mqa"]]})


def test_an_invalid_cell_of_a_grid_is_excluded_with_its_reason(plugin_index: Index) -> None:
    result = planned(plugin_index, design="grid", vary={"dims.heads": [4, 3], "attention": ["mha", "mqa"]})
    assert {cell.variant for cell in result.excluded if "multiple" in cell.reason} == {
        "dims.heads=3 attention=mha",
        "dims.heads=3 attention=mqa",
    }


def test_a_listed_variant_must_be_valid(plugin_index: Index) -> None:
    with raises_problem(SpecError, "unknown-component", "mqq", "mqa"):
        planned(plugin_index, vary={"attention": ["mqq"]})


def test_a_problem_of_the_base_is_reported_once(plugin_index: Index) -> None:
    with raises_problem(SpecError, "not-divisible", "dims.heads") as caught:
        planned(plugin_index, base={"preset": "encoder-tiny", "dims.heads": 5})
    assert [problem.code for problem in caught.value.problems].count("not-divisible") == 1


def test_too_many_trials_are_counted_before_any_is_made(plugin_index: Index) -> None:
    many = list(range(1, 1001))
    vary = {"data.batch": many, "dims.length": many, "dims.width": many}
    with raises_problem(SpecError, "too-many-trials", "3,000,000,003", "data.batch: 1000", "dims.length: 1000"):
        planned(plugin_index, design="grid", vary=vary)


def test_a_budget_in_tokens_is_rounded_up_to_whole_steps(plugin_index: Index) -> None:
    result = planned(plugin_index, budget={"tokens": 32 * 64 * 7 + 1})
    assert {trial.spec["trainer"]["max_steps"] for trial in result.trials} == {8}


def test_a_matched_study_changes_the_option_of_each_variant(plugin_index: Index) -> None:
    study = parse_study(
        "mine", plain_tree({**STUDY, "match": {"on": "params", "by": "feedforward.expand"}}, "study"), plugin_index
    )

    def count(spec: dict[str, Any]) -> int:
        heads = {"mha": 4, "mqa": 1, "gqa": 2}[spec["attention"]["name"]]
        return int(heads * 1000 + round(1000 * spec["feedforward"]["expand"]))

    result = plan(study, plugin_index, fingerprint=lambda spec: "text", make_count=lambda study: count)
    assert result.matched["attention=mqa"].value == pytest.approx(7.0)
    assert result.matched["norm=rmsnorm"].value == 4.0
    trial = result.trials_of("attention=mqa")[0]
    assert trial.spec["feedforward"]["expand"] == pytest.approx(7.0)
    assert set(trial.changes) == {"attention"}
    assert set(trial.matched_values) == {"feedforward.expand"}


def test_an_option_that_is_not_a_number_cannot_be_matched(plugin_index: Index) -> None:
    changes = {**STUDY, "match": {"on": "params", "by": "feedforward.activation"}}
    study = parse_study("mine", plain_tree(changes, "study"), plugin_index)
    with raises_problem(SpecError, "not-numeric", "gelu"):
        plan(study, plugin_index, fingerprint=lambda spec: "text", make_count=lambda study: lambda spec: 1)


def test_identities_are_the_same_in_another_process(plugin_index: Index) -> None:
    code = f"""
from paribus.registry import index
from paribus.specs.tree import plain_tree
from paribus.planning.plan import plan
from paribus.studies.study import parse_study
import sys
known = index()
study = parse_study("mine", plain_tree({dict(STUDY)!r}, "study"), known)
print(*(trial.identity for trial in plan(study, known, fingerprint=lambda spec: "text").trials))
assert "torch" not in sys.modules
"""
    caught = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert caught == [trial.identity for trial in planned(plugin_index).trials]


def test_every_change_of_a_trial_changes_its_identity(plugin_index: Index) -> None:
    spec = planned(plugin_index).trials[0].spec
    same = identity_of(spec, "code", "corpus")
    assert identity_of({**spec, "data": {**spec["data"], "workers": 3}}, "code", "corpus") == same
    assert identity_of({**spec, "seed": 1}, "code", "corpus") != same
    assert identity_of(spec, "other", "corpus") != same
    assert identity_of(spec, "code", "other") != same


def test_every_component_of_a_spec_counts_towards_its_code(plugin_index: Index) -> None:
    spec = dict(planned(plugin_index).trials[0].spec)
    spec["parts"] = {"encoder": {"cross": {"attention": {"name": "mqa"}}}}
    spec["feedforward"] = {"name": "moe", "expert": {"name": "glu"}}
    result = set(components_of(spec, plugin_index))
    assert {
        ("attention", "mha"),
        ("attention", "mqa"),
        ("feedforward", "moe"),
        ("feedforward", "glu"),
        ("optimizer", "adamw"),
        ("corpus", "python-docs"),
    } <= result


def test_the_code_of_a_component_includes_imports_from_its_own_package_only(tmp_path: Path) -> None:
    package = tmp_path / "mine"
    package.mkdir()
    (package / "__init__.py").write_text("from mine.one import One as one\nfrom mine.two import Two as two\n")
    (package / "one.py").write_text("import torch\nfrom mine.shared import helper\n")
    (package / "shared.py").write_text("from . import deeper\n")
    (package / "deeper.py").write_text("X = 1\n")
    (package / "two.py").write_text("Y = 1\n")
    names = {path.name for path in closure(package / "one.py")}
    assert names == {"one.py", "shared.py", "deeper.py"}


def test_line_endings_are_no_change_of_code(tmp_path: Path) -> None:
    for name, text in (("a", b"x = 1\ny = 2\n"), ("b", b"x = 1\r\ny = 2\r\n"), ("c", b"x = 1\ny = 3\n")):
        (tmp_path / f"{name}.py").write_bytes(text)
    one, second, third = (source_hash([tmp_path / f"{name}.py"], CodeHashes()) for name in "abc")
    assert one == second != third


def test_values_that_reference_a_varied_key_are_recorded(plugin_index: Index) -> None:
    base = {"preset": "encoder-tiny", "feedforward": {"name": "mlp", "inner": "${dims.width}", "expand": None}}
    result = planned(plugin_index, base=base, vary={"dims.width": [32]})
    trial = result.trials_of("dims.width=32")[0]
    assert trial.spec["feedforward"]["inner"] == 32
    assert trial.matched_values == {"feedforward.inner": 32}
