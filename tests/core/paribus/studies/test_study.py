"""A study file is read whole: every mistake of it at once, each with its place."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.fixtures.problems import raises_problem

from paribus.errors import SpecError
from paribus.planning.plan import plan
from paribus.registry import Index
from paribus.specs.tree import plain_tree
from paribus.specs.yaml_reader import read_file
from paribus.studies.study import Study, parse_study

WHOLE = """
base: encoder-tiny
vary:
  attention: [mqa, {name: gqa, kv_heads: 2}]
seeds: 3
budget: {steps: 10}
metric: {name: val/mlm/loss, margin: 0.02}
"""


def read(tmp_path: Path, text: str, plugin_index: Index) -> Study:
    path = tmp_path / "study.yaml"
    path.write_text(text)
    return parse_study("mine", read_file(path, "study.yaml"), plugin_index)


def test_a_study_is_read_with_its_axes(tmp_path: Path, plugin_index: Index) -> None:
    study = read(tmp_path, WHOLE, plugin_index)
    assert study.varied.vary == {"attention": ["mqa", {"name": "gqa", "kv_heads": 2}]}
    assert study.seeds == (0, 1, 2)
    assert study.budget == {"steps": 10}
    assert (study.metric.name, study.metric.better, study.metric.margin) == ("val/mlm/loss", "lower", 0.02)
    assert study.design == "one-at-a-time"


def test_a_base_may_be_a_name_with_overrides_and_dotted_keys(tmp_path: Path, plugin_index: Index) -> None:
    text = WHOLE.replace("base: encoder-tiny", "base: {preset: encoder-tiny, dims.width: 32, norm: rmsnorm}")
    base = read(tmp_path, text, plugin_index).base.data
    assert base["dims"]["width"] == 32
    assert base["norm"] == "rmsnorm"
    assert base["topology"] == "encoder"


FAULTS = [
    ("unknown key", "sedes: 5", "unknown-key", ("sedes", "study.yaml", "seeds")),
    ("a key of a program", "inptus: [a]", "unknown-key", ("inptus", "only studies of a program have `inputs`")),
    ("unknown design", "design: onee-at-a-time", "unknown-design", ("one-at-a-time, grid, list",)),
    ("no base", "base: null", "missing", ("base",)),
    ("base of a wrong kind", "base: [1]", "missing", ("base", "a list")),
    ("no such preset", "base: encodr-tiny", "unknown-preset", ("encodr-tiny", "encoder-tiny")),
    ("axis that is no list", "vary: {attention: mqa}", "wrong-type", ("vary.attention", "mqa")),
    (
        "axes as a list",
        "vary: [attention, norm=rmsnorm]",
        "wrong-type",
        ("vary: {attention: [mqa, gqa], norm: [rmsnorm]}",),
    ),
    ("axes as mappings", "vary: [{norm: rmsnorm}, [3]]", "wrong-type", ("vary: {norm: [rmsnorm]}",)),
    ("axes as a text", "vary: attention.mqa", "wrong-type", ("vary (study.yaml:6)", "vary: {attention: [mqa]}")),
    ("axes that nothing names", "vary: 3", "wrong-type", ("the number 3", "vary: {attention: [mqa, gqa]}")),
    ("tuned values as a list", "tune: [optimizer.lr]", "wrong-type", ("tune: {optimizer.lr: […, …]}",)),
    ("a match as a text", "match: params", "wrong-type", ("match: {on: params, by: feedforward.expand}",)),
    ("empty axis", "vary: {attention: []}", "wrong-type", ("vary.attention",)),
    (
        "a variant without a name",
        "design: list\nvariants: [{name: '', seed: 1}]",
        "bad-name",
        ("variants.0.name",),
    ),
    (
        "a variant called baseline",
        "design: list\nvariants: [{name: baseline, seed: 1}]",
        "bad-name",
        ("variants.0.name", "baseline"),
    ),
    ("nothing varied", "vary: {}", "empty", ("vary", "0")),
    ("variants without their design", "variants: [{norm: rmsnorm}]", "unused-option", ("variants", "vary")),
    ("axes under a list", "design: list", "unused-option", ("vary", "variants")),
    ("variants of a wrong kind", "variants: 3", "wrong-type", ("variants", "3")),
    ("no seeds", "seeds: 0", "wrong-type", ("seeds", "0")),
    ("a seed twice", "seeds: [1, 1, 2, 3, 3]", "duplicate-seed", ("1", "3")),
    ("a name that no folder can have", "name: ../up", "bad-name", ("name", "../up")),
    ("seeds of a wrong kind", "seeds: many", "wrong-type", ("seeds", "many")),
    ("unknown budget", "budget: {stpes: 3}", "unknown-key", ("stpes", "steps")),
    ("budget of nothing", "budget: {steps: 0}", "out-of-range", ("budget.steps", "≥ 1")),
    ("two budgets", "budget: {steps: 5, tokens: 5}", "too-many", ("budget", "steps, tokens")),
    (
        "unknown match",
        "match: {on: wings, by: feedforward.expand}",
        "wrong-type",
        ("match.on", "wings", "params, flops"),
    ),
    ("match without a knob", "match: {on: params}", "missing", ("match.by", "feedforward.expand")),
    ("unknown key of match", "match: {on: params, by: feedforward.expand, bye: 1}", "unknown-key", ("match.bye", "by")),
    ("metric without a name", "metric: {margin: 1}", "missing", ("metric.name", "val/<objective>/<name>")),
    ("metric without a direction", "metric: {name: val/mlm/accuracy}", "missing", ("metric.better", "better: higher")),
    ("metric of a wrong form", "metric: loss", "bad-name", ("metric.name", "loss", "val/<objective>/<name>")),
    (
        "unknown key of metric",
        "metric: {name: val/mlm/loss, betterr: lower}",
        "unknown-key",
        ("metric.betterr", "better"),
    ),
    (
        "which is better",
        "metric: {name: val/mlm/loss, better: more}",
        "wrong-type",
        ("metric.better", "more", "lower, higher"),
    ),
    (
        "unlearned that is no answer",
        "metric: {name: val/mlm/loss, unlearned: 1}",
        "wrong-type",
        ("metric.unlearned", "1"),
    ),
    ("no metric", "metric: null", "missing", ("metric.name", "val/<objective>/<name>")),
    ("a metric that is null", "metric: {name: null}", "missing", ("metric.name", "val/<objective>/<name>")),
    ("nothing to match on", "match: {by: feedforward.expand}", "missing", ("match.on", "params, flops")),
    ("nothing to match by", "match: {on: params}", "missing", ("match.by", "feedforward.expand")),
    ("a margin of nothing", "metric: {name: val/mlm/loss, margin: 0}", "out-of-range", ("metric.margin", "> 0")),
    ("a timeout of nothing", "timeout: 0", "out-of-range", ("timeout",)),
]


@pytest.mark.parametrize(("line", "code", "values"), [row[1:] for row in FAULTS], ids=[row[0] for row in FAULTS])
def test_an_error_names_the_valid_values(
    tmp_path: Path, plugin_index: Index, line: str, code: str, values: tuple[str, ...]
) -> None:
    key = line.partition(":")[0]
    saved, skipping = [], False
    for other in WHOLE.splitlines():
        skipping = other.startswith(f"{key}:") or (skipping and other.startswith(" "))
        if not skipping:
            saved.append(other)
    with raises_problem(SpecError, code, *values) as error_info:
        read(tmp_path, "\n".join([*saved, line]), plugin_index)
    assert error_info.value.exit_code == 2


def test_all_errors_of_a_study_are_reported_at_once(tmp_path: Path, plugin_index: Index) -> None:
    text = WHOLE.replace("seeds: 3", "seeds: 0").replace("steps: 10", "steps: 0").replace("val/mlm/loss", "loss")
    with raises_problem(SpecError, "bad-name", "metric.name") as error_info:
        read(tmp_path, text, plugin_index)
    assert len(error_info.value.problems) == 3


def test_a_study_may_set_its_name(tmp_path: Path, plugin_index: Index) -> None:
    assert read(tmp_path, WHOLE, plugin_index).name == "mine"
    assert read(tmp_path, f"name: other\n{WHOLE}", plugin_index).name == "other"


HINTS = [
    ({"depth": 3}, "base.dims.layers"),
    ({"lr": 3}, "base.optimizer.lr"),
    ({"batch_size": 3}, "base.data.batch"),
    ({"steps": 3}, "budget.steps"),
    ({"epochs": 3}, "budget.steps"),
    ({"budget": {"epochs": 3}}, "steps"),
    ({"vary": {"n_heads": [1, 2]}}, "dims.heads"),
    ({"vary": {"dims.depth": [1, 2]}}, "layers"),
]


@pytest.mark.parametrize(("changes", "meant"), HINTS)
def test_a_common_name_of_a_key_leads_to_the_key(changes: dict[str, Any], meant: str, plugin_index: Index) -> None:
    tree = {"base": "encoder-tiny", "vary": {"attention": ["mqa"]}, "metric": "val/mlm/loss", **changes}
    with raises_problem(SpecError, "unknown-key") as caught:
        plan(
            parse_study("mine", plain_tree(tree, "study"), plugin_index),
            plugin_index,
            fingerprint=lambda spec: "text",
        )
    assert {(problem.code, problem.suggestion) for problem in caught.value.problems} == {("unknown-key", meant)}
