"""A study with stages: what each trains, what begins from what, and who shares a pretraining."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.fixtures.problems import raises_problem

from paribus.errors import SpecError
from paribus.planning.identity import identity_of
from paribus.planning.plan import Plan, plan
from paribus.registry import Index
from paribus.specs.tree import plain_tree
from paribus.specs.yaml_reader import read_file
from paribus.studies.designs import BASELINE
from paribus.studies.stages import key_in_stage
from paribus.studies.study import Study, parse_study

STUDY: dict[str, Any] = {
    "base": {"preset": "bert-tiny", "dims.width": 32},
    "vary": {"attention": ["mqa"]},
    "stages": {
        "pretrain": {"objective": ["mlm", "nsp"], "budget": {"steps": 6}},
        "finetune": {
            "optimizer.lr": 5e-4,
            "budget": {"steps": 4},
            "tasks": {"order": {"objective": "sop"}, "next": {"objective": "nsp", "budget": {"steps": 2}}},
        },
    },
    "seeds": 2,
    "metric": {"name": "val/sop/loss", "stage": "finetune", "task": "order"},
}
NAMES = ["pretrain", "finetune/order", "finetune/next"]


ONE: dict[str, Any] = {"tasks": {"one": {"objective": "sop"}}}
TWICE: dict[str, Any] = {
    "pretrain": {"objective": "mlm"},
    "a": {"from": "pretrain", **ONE},
    "b": {"from": "pretrain", **ONE},
}


def study(plugin_index: Index, **changes: Any) -> Study:
    return parse_study("mine", plain_tree({**STUDY, **changes}, "study"), plugin_index)


def planned(plugin_index: Index, corpus: str = "text", **changes: Any) -> Plan:
    return plan(study(plugin_index, **changes), plugin_index, fingerprint=lambda spec: corpus)


def staged(**stages: Any) -> dict[str, Any]:
    return {**STUDY["stages"], **stages}


def test_every_variant_goes_through_every_stage(plugin_index: Index) -> None:
    result = planned(plugin_index)
    assert [stage.name for stage in result.study.stages] == NAMES
    assert len(result.trials) == len({trial.identity for trial in result.trials}) == 2 * 3 * 2
    assert [(trial.seed, trial.stage, trial.variant) for trial in result.trials[:4]] == [
        (0, "pretrain", BASELINE),
        (0, "pretrain", "attention=mqa"),
        (0, "finetune/order", BASELINE),
        (0, "finetune/order", "attention=mqa"),
    ]
    assert result.trials[2].label == "baseline, finetune/order, seed 0"
    assert result.trials_of(BASELINE) == result.trials_of(BASELINE, "finetune/order")  # those that the metric is of
    steps = {trial.stage: trial.spec["trainer"]["max_steps"] for trial in result.trials}
    assert steps == {"pretrain": 6, "finetune/order": 4, "finetune/next": 2}
    rates = {trial.stage: trial.spec["optimizer"]["lr"] for trial in result.trials}
    assert rates == {
        "pretrain": result.study.base.data["optimizer"]["lr"],
        "finetune/order": 5e-4,
        "finetune/next": 5e-4,
    }


def test_a_trial_begins_from_that_of_its_own_variant_and_seed(plugin_index: Index) -> None:
    result = planned(plugin_index)
    for variant in (BASELINE, "attention=mqa"):
        pretrained = {trial.seed: trial.identity for trial in result.trials_of(variant, "pretrain")}
        for name in NAMES[1:]:
            for trial in result.trials_of(variant, name):
                assert trial.parent_id == trial.spec["from"]["trial"] == pretrained[trial.seed]
                assert trial.document()["parent_id"] == trial.parent_id
    assert all("from" not in trial.spec for trial in result.trials_of(BASELINE, "pretrain"))


def test_an_identity_depends_on_the_parent_trial(plugin_index: Index) -> None:
    def identity(**changes: Any) -> str:
        return planned(plugin_index, **changes).trials_of(BASELINE)[0].identity

    longer = staged(pretrain={"objective": ["mlm", "nsp"], "budget": {"steps": 7}})
    assert len({identity(), identity(stages=longer), identity(corpus="other")}) == 3
    assert identity() == identity(vary={"attention": ["identity"]})


@pytest.mark.thorough
def test_trials_have_the_same_names_in_every_process(plugin_index: Index) -> None:
    code = (
        "import json, sys; from paribus.planning.api import study; "
        "found = study(json.loads(sys.argv[1])).plan; print(*(trial.identity for trial in found.trials))"
    )
    words = [sys.executable, "-c", code, json.dumps(STUDY)]
    one, two = (subprocess.run(words, capture_output=True, text=True, check=True).stdout for _ in range(2))
    assert one == two
    assert len(one.split()) == 12


def test_variants_share_a_pretraining(plugin_index: Index) -> None:
    result = planned(plugin_index, vary={"finetune.optimizer.lr": [1e-2], "attention": ["mqa"]})
    slow = "finetune.optimizer.lr=0.01"
    assert result.trials_of(slow, "pretrain") == result.trials_of(BASELINE, "pretrain")
    assert result.new_trials(slow, "pretrain") == ()
    assert {trial.parent_id for trial in result.trials_of(slow)} == {
        trial.parent_id for trial in result.trials_of(BASELINE)
    }
    assert result.trials_of(slow)[0].spec["optimizer"]["lr"] == 1e-2
    assert len(result.trials) == 2 * (2 + 3 * 2)


def test_a_change_of_an_early_stage_changes_later_identities(plugin_index: Index) -> None:
    result = planned(plugin_index, vary={"pretrain.objective": [["mlm", "sop"]]})
    variant = "pretrain.objective=[mlm,sop]"
    assert [node["name"] for node in result.trials_of(variant, "pretrain")[0].spec["objective"]] == ["mlm", "sop"]
    previous, following = result.trials_of(BASELINE)[0], result.trials_of(variant)[0]
    assert following.changes == {"from": {"trial": following.parent_id}}
    assert previous.changes == {}
    plain_specs = [{**trial.spec, "from": None} for trial in (previous, following)]
    assert plain_specs[0] == plain_specs[1]
    assert result.trials_of(variant, "pretrain")[0].changes == {"objective": ["mlm", "sop"]}


def test_a_variant_that_changes_no_measured_spec_is_excluded(plugin_index: Index) -> None:
    result = planned(plugin_index, vary={"attention": ["mqa"], "finetune.next.optimizer.lr": [1e-2]})
    assert [cell.variant for cell in result.excluded] == ["finetune.next.optimizer.lr=0.01"]
    assert "it would change nothing" in result.excluded[0].reason
    assert len(result.trials_of("attention=mqa")) == 2


def test_a_stage_keeps_the_vocabulary_unless_a_new_one_is_requested(plugin_index: Index) -> None:
    second = {"name": "text", "path": ["mine.txt"]}
    stages = staged(domain={"from": "pretrain", "objective": "mlm", "corpus": second})
    metric = {"name": "val/mlm/loss", "stage": "domain"}
    result = planned(plugin_index, stages=stages, metric=metric)
    pretrained, domain = result.trials_of(BASELINE, "pretrain")[0].spec, result.trials_of(BASELINE)[0].spec
    assert domain["from"]["learned"] == {"corpus": pretrained["corpus"], "tokenizer": pretrained["tokenizer"],
                                         "vocabulary": pretrained["dims"]["vocabulary"]}  # fmt: skip
    assert "learned" not in result.trials_of(BASELINE, "finetune/order")[0].spec["from"]  # it is its own corpus
    stages["domain"] = {**stages["domain"], "from": {"name": "pretrain", "vocabulary": "new"}, "tokenizer": "bpe"}
    new = planned(plugin_index, stages=stages, metric=metric).trials_of(BASELINE)[0]
    assert new.spec["from"] == {"trial": new.parent_id, "vocabulary": "new"}
    stages["domain"] = {**stages["domain"], "from": "pretrain"}
    with raises_problem(SpecError, "other-tokenizer", "tokenizer", "wordpiece"):
        planned(plugin_index, stages=stages, metric=metric)


def test_a_stage_may_begin_from_a_task_or_from_nothing(plugin_index: Index) -> None:
    stages = staged(again={"from": "finetune/next", "objective": "sop"}, afresh={"from": None, "objective": "sop"})
    result = planned(plugin_index, stages=stages, metric={"name": "val/sop/loss", "stage": "again"})
    by = {trial.identity: trial for trial in result.trials}
    final = result.trials_of(BASELINE)[0]
    assert [by[final.parent_id].stage, by[by[final.parent_id].parent_id].stage] == ["finetune/next", "pretrain"]
    assert result.trials_of(BASELINE, "afresh")[0].parent_id == ""
    assert result.trials_of(BASELINE, "again")[0].spec["trainer"] == {}


def test_a_match_changes_its_option_at_every_stage(plugin_index: Index) -> None:
    request: list[str] = []

    def count(spec: dict[str, Any]) -> int:
        request.append(spec["objective"]["name"] if isinstance(spec["objective"], dict) else "several")
        heads = 4 if spec["attention"]["name"] == "mha" else 1
        return int(100 * spec["feedforward"]["expand"]) + 100 * heads

    read = study(plugin_index, match={"on": "params", "by": "feedforward.expand"})
    result = plan(read, plugin_index, fingerprint=lambda spec: "text", make_count=lambda study: count)
    assert set(request) == {"sop"}  # at the stage that the metric is of
    trials = [result.trials_of("attention=mqa", name)[0] for name in NAMES]
    assert {trial.spec["feedforward"]["expand"] for trial in trials} == {7.0}
    assert all(trial.matched_values == {"feedforward.expand": 7.0} for trial in trials)


@pytest.mark.parametrize(
    ("key", "stage", "expected"),
    [
        ("attention", "pretrain", "attention"),
        ("pretrain.objective", "pretrain", "objective"),
        ("pretrain.objective", "finetune/order", None),
        ("finetune.optimizer.lr", "finetune/next", "optimizer.lr"),
        ("finetune.next.optimizer.lr", "finetune/next", "optimizer.lr"),
        ("finetune.next.optimizer.lr", "finetune/order", None),
    ],
)
def test_a_varied_key_may_have_the_name_of_a_stage(
    plugin_index: Index, key: str, stage: str, expected: str | None
) -> None:
    stages = study(plugin_index).stages
    assert key_in_stage(key, next(item for item in stages if item.name == stage), stages) == expected


FAULTS = [
    ({"stages": {}}, "empty", ("stages",)),
    ({"stages": [1]}, "wrong-type", ("stages",)),
    ({"stages": staged(norm={})}, "bad-name", ("norm",)),
    ({"stages": staged(Two={})}, "bad-name", ("Two",)),
    ({"stages": staged(last={"from": "finetune"})}, "ambiguous", ("finetune", "finetune/order, finetune/next")),
    ({"stages": staged(last={})}, "missing", ("stages.last.from", "finetune/order, finetune/next, null")),
    ({"stages": staged(last={"from": "pretrian"})}, "unknown-stage", ("pretrian", "pretrain")),
    ({"stages": {"a": {"from": "b"}, "b": {}}}, "out-of-order", ("stages.a.from", "b")),
    (
        {"stages": staged(last={"from": {"name": "pretrain", "vocabulary": "old"}})},
        "wrong-type",
        ("stages.last.from.vocabulary", "kept, new"),
    ),
    ({"stages": staged(last={"from": {"name": "pretrain", "rows": 1}})}, "unknown-key", ("rows",)),
    ({"stages": {"a": {"tasks": {}}}}, "empty", ("stages.a.tasks",)),
    ({"stages": {"a": {"tasks": {"seed": {}}}}}, "bad-name", ("seed",)),
    ({"stages": {"a": {"tasks": {"b": {"from": "x"}}}}}, "unused-option", ("stages.a.tasks.b.from",)),
    ({"stages": {"a": {"budget": {"stepps": 1}}}}, "unknown-key", ("stages.a.budget.stepps", "steps")),
    ({"vary": {"objective": ["mlm"]}}, "varied-twice", ("pretrain", "objective")),
    ({"vary": {"optimizer": ["adamw"]}}, "varied-twice", ("optimizer.lr", "pretrain.optimizer")),
    ({"vary": {"finetune.from": ["runs/x"]}}, "unused-option", ("pretrain", "finetune.from: null")),
    ({"vary": {"finetune.from": [None, "runs/x"]}}, "unused-option", ("pretrain", "finetune.from: null")),
    ({"metric": {"name": "val/sop/loss"}}, "missing", ("metric.task", "stage: finetune, task: order")),
    ({"metric": {"name": "val/sop/loss", "stage": "finetun"}}, "unknown-stage", ("finetun",)),
    (
        {"metric": {"name": "val/sop/loss", "stage": "finetune"}},
        "missing",
        ("metric.task", "finetune"),
    ),
    (
        {"metric": {"name": "val/sop/loss", "stage": "finetune"}},
        "missing",
        ("metric.task", "task: order", "task: next"),
    ),
    ({"metric": {"name": "val/sop/loss", "stage": "finetune", "task": "ordre"}}, "unknown-stage", ("finetune/ordre",)),
    (
        {"stages": TWICE, "metric": {"name": "val/sop/loss", "task": "one"}},
        "missing",
        ("metric.stage", "one"),
    ),
    ({"vary": {"fintune.optimizer.lr": [1e-4]}}, "unknown-stage", ("fintune", "finetune")),
    ({"vary": {"fintune.optimizer.lr": [1e-4]}}, "unknown-stage", ("fintune", "pretrain, finetune")),
    ({"stages": None, "metric": {"name": "val/mlm/loss", "stage": "a"}}, "unused-option", ("metric.stage",)),
]


@pytest.mark.parametrize(("changes", "code", "values"), FAULTS)
def test_an_error_names_the_valid_values(
    plugin_index: Index, changes: dict[str, Any], code: str, values: tuple[str, ...]
) -> None:
    with raises_problem(SpecError, code, *values):
        study(plugin_index, **changes)


def test_a_stage_with_one_task_identifies_the_metric(plugin_index: Index) -> None:
    stages = {"pretrain": {"objective": "mlm"}, "a": {"from": "pretrain", **ONE}, "last": {"from": "pretrain"}}
    assert study(plugin_index, stages=stages, metric={"name": "val/sop/loss", "stage": "a"}).metric.stage == "a/one"


def test_a_task_identifies_the_metric(plugin_index: Index) -> None:
    assert study(plugin_index, metric={"name": "val/nsp/loss", "task": "next"}).metric.stage == "finetune/next"


def test_an_error_in_a_stage_has_its_line(tmp_path: Path, plugin_index: Index) -> None:
    path = tmp_path / "study.yaml"
    path.write_text(
        "base: bert-tiny\nvary: {attention: [mqa]}\nstages:\n  a: {objective: mlm}\n  b:\n    objective: sopp\n"
        "metric: val/sop/loss\n"
    )
    with raises_problem(SpecError, "unknown-component", "objective", "study.yaml:6", "sop"):
        plan(
            parse_study("mine", read_file(path, "study.yaml"), plugin_index),
            plugin_index,
            fingerprint=lambda spec: "text",
        )


def test_a_study_without_stages_names_trials_without_a_stage(plugin_index: Index) -> None:
    result = planned(plugin_index, stages=None, metric="val/mlm/loss", budget={"steps": 3}).trials[0]
    assert (result.stage, result.parent_id, result.label) == ("", "", "baseline, seed 0")
    assert "stage" not in result.document()
    assert result.identity == identity_of(result.spec, result.code, result.corpus)
