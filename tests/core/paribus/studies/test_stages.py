"""A study with stages: what each trains, what begins from what, and who shares a pretraining."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from paribus.errors import SpecError
from paribus.planning.identity import identity_of
from paribus.planning.plan import Plan, plan
from paribus.registry import Index
from paribus.specs.input_limits import plain_tree
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


def study(known: Index, **changes: Any) -> Study:
    return parse_study("mine", plain_tree({**STUDY, **changes}, "study"), known)


def planned(known: Index, corpus: str = "text", **changes: Any) -> Plan:
    return plan(study(known, **changes), known, fingerprint=lambda spec: corpus)


def staged(**stages: Any) -> dict[str, Any]:
    return {**STUDY["stages"], **stages}


def test_every_variant_goes_through_every_stage(known: Index) -> None:
    found = planned(known)
    assert [stage.name for stage in found.study.stages] == NAMES
    assert len(found.trials) == len({trial.identity for trial in found.trials}) == 2 * 3 * 2
    assert [(trial.seed, trial.stage, trial.variant) for trial in found.trials[:4]] == [
        (0, "pretrain", BASELINE),
        (0, "pretrain", "attention=mqa"),
        (0, "finetune/order", BASELINE),
        (0, "finetune/order", "attention=mqa"),
    ]
    assert found.trials[2].label == "baseline, finetune/order, seed 0"
    assert found.trials_of(BASELINE) == found.trials_of(BASELINE, "finetune/order")  # those that the metric is of
    steps = {trial.stage: trial.spec["trainer"]["max_steps"] for trial in found.trials}
    assert steps == {"pretrain": 6, "finetune/order": 4, "finetune/next": 2}
    rates = {trial.stage: trial.spec["optimizer"]["lr"] for trial in found.trials}
    assert rates == {
        "pretrain": found.study.base.data["optimizer"]["lr"],
        "finetune/order": 5e-4,
        "finetune/next": 5e-4,
    }


def test_a_trial_begins_from_that_of_its_own_variant_and_seed(known: Index) -> None:
    found = planned(known)
    for variant in (BASELINE, "attention=mqa"):
        pretrained = {trial.seed: trial.identity for trial in found.trials_of(variant, "pretrain")}
        for name in NAMES[1:]:
            for trial in found.trials_of(variant, name):
                assert trial.parent_id == trial.spec["from"]["trial"] == pretrained[trial.seed]
                assert trial.document()["parent_id"] == trial.parent_id
    assert all("from" not in trial.spec for trial in found.trials_of(BASELINE, "pretrain"))


def test_an_identity_follows_from_that_of_what_it_begins_from(known: Index) -> None:
    def identity(**changes: Any) -> str:
        return planned(known, **changes).trials_of(BASELINE)[0].identity

    longer = staged(pretrain={"objective": ["mlm", "nsp"], "budget": {"steps": 7}})
    assert len({identity(), identity(stages=longer), identity(corpus="other")}) == 3
    assert identity() == identity(vary={"attention": ["identity"]})


def test_trials_have_the_same_names_in_every_process(known: Index) -> None:
    code = (
        "import json, sys; from paribus.planning.api import study; "
        "found = study(json.loads(sys.argv[1])).plan; print(*(trial.identity for trial in found.trials))"
    )
    words = [sys.executable, "-c", code, json.dumps(STUDY)]
    one, two = (subprocess.run(words, capture_output=True, text=True, check=True).stdout for _ in range(2))
    assert one == two
    assert len(one.split()) == 12


def test_a_pretraining_is_shared_by_all_that_begin_from_it(known: Index) -> None:
    found = planned(known, vary={"finetune.optimizer.lr": [1e-2], "attention": ["mqa"]})
    slow = "finetune.optimizer.lr=0.01"
    assert found.trials_of(slow, "pretrain") == found.trials_of(BASELINE, "pretrain")
    assert found.new_trials(slow, "pretrain") == ()
    assert {trial.parent_id for trial in found.trials_of(slow)} == {
        trial.parent_id for trial in found.trials_of(BASELINE)
    }
    assert found.trials_of(slow)[0].spec["optimizer"]["lr"] == 1e-2
    assert len(found.trials) == 2 * (2 + 3 * 2)


def test_what_changes_only_an_earlier_stage_changes_what_follows_from_it(known: Index) -> None:
    found = planned(known, vary={"pretrain.objective": [["mlm", "sop"]]})
    variant = "pretrain.objective=[mlm,sop]"
    assert [node["name"] for node in found.trials_of(variant, "pretrain")[0].spec["objective"]] == ["mlm", "sop"]
    before, after = found.trials_of(BASELINE)[0], found.trials_of(variant)[0]
    assert after.changes == {"from": {"trial": after.parent_id}}
    assert before.changes == {}
    plain_specs = [{**trial.spec, "from": None} for trial in (before, after)]
    assert plain_specs[0] == plain_specs[1]
    assert found.trials_of(variant, "pretrain")[0].changes == {"objective": ["mlm", "sop"]}


def test_what_would_change_nothing_that_is_measured_is_left_out_and_said(known: Index) -> None:
    found = planned(known, vary={"attention": ["mqa"], "finetune.next.optimizer.lr": [1e-2]})
    assert [each.variant for each in found.excluded] == ["finetune.next.optimizer.lr=0.01"]
    assert "it would change nothing" in found.excluded[0].reason
    assert len(found.trials_of("attention=mqa")) == 2


def test_a_vocabulary_is_that_of_the_first_stage_unless_a_new_one_is_asked_for(known: Index) -> None:
    other = {"name": "text", "path": ["mine.txt"]}
    stages = staged(domain={"from": "pretrain", "objective": "mlm", "corpus": other})
    metric = {"name": "val/mlm/loss", "stage": "domain"}
    found = planned(known, stages=stages, metric=metric)
    pretrained, domain = found.trials_of(BASELINE, "pretrain")[0].spec, found.trials_of(BASELINE)[0].spec
    assert domain["from"]["learned"] == {"corpus": pretrained["corpus"], "tokenizer": pretrained["tokenizer"],
                                         "vocabulary": pretrained["dims"]["vocabulary"]}  # fmt: skip
    assert "learned" not in found.trials_of(BASELINE, "finetune/order")[0].spec["from"]  # it is its own corpus
    stages["domain"] = {**stages["domain"], "from": {"name": "pretrain", "vocabulary": "new"}, "tokenizer": "bpe"}
    new = planned(known, stages=stages, metric=metric).trials_of(BASELINE)[0]
    assert new.spec["from"] == {"trial": new.parent_id, "vocabulary": "new"}
    stages["domain"] = {**stages["domain"], "from": "pretrain"}
    with pytest.raises(SpecError, match=r"the kept vocabulary has the tokenizer `wordpiece`.*, got another"):
        planned(known, stages=stages, metric=metric)


def test_a_stage_may_begin_from_a_task_or_from_nothing(known: Index) -> None:
    stages = staged(again={"from": "finetune/next", "objective": "sop"}, afresh={"from": None, "objective": "sop"})
    found = planned(known, stages=stages, metric={"name": "val/sop/loss", "stage": "again"})
    by = {trial.identity: trial for trial in found.trials}
    last = found.trials_of(BASELINE)[0]
    assert [by[last.parent_id].stage, by[by[last.parent_id].parent_id].stage] == ["finetune/next", "pretrain"]
    assert found.trials_of(BASELINE, "afresh")[0].parent_id == ""
    assert found.trials_of(BASELINE, "again")[0].spec["trainer"] == {}


def test_the_knob_of_a_match_is_turned_at_every_stage(known: Index) -> None:
    asked: list[str] = []

    def count(spec: dict[str, Any]) -> int:
        asked.append(spec["objective"]["name"] if isinstance(spec["objective"], dict) else "several")
        heads = 4 if spec["attention"]["name"] == "mha" else 1
        return int(100 * spec["feedforward"]["expand"]) + 100 * heads

    read = study(known, match={"on": "params", "by": "feedforward.expand"})
    found = plan(read, known, fingerprint=lambda spec: "text", count=count)
    assert set(asked) == {"sop"}  # at the stage that the metric is of
    trials = [found.trials_of("attention=mqa", name)[0] for name in NAMES]
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
def test_a_varied_key_says_for_which_stage_it_is_meant(
    known: Index, key: str, stage: str, expected: str | None
) -> None:
    stages = study(known).stages
    assert key_in_stage(key, next(each for each in stages if each.name == stage), stages) == expected


FAULTS = [
    ({"stages": {}}, "stages.*this study has no stage"),
    ({"stages": [1]}, "expected a mapping, got a list"),
    ({"stages": staged(norm={})}, "`norm` cannot be the name of a stage: it is a key of a spec"),
    ({"stages": staged(Two={})}, "`Two` cannot be the name of a stage"),
    ({"stages": staged(last={"from": "finetune"})}, "`finetune` has several tasks; valid: finetune/order, finetune/n"),
    ({"stages": staged(last={})}, r"missing\] stages.last.from.*valid: finetune/order, .*null"),
    ({"stages": staged(last={"from": "pretrian"})}, 'unknown stage "pretrian"; .*did you mean "pretrain"'),
    ({"stages": {"a": {"from": "b"}, "b": {}}}, r"out-of-order\] stages.a.from.*`b`"),
    ({"stages": staged(last={"from": {"name": "pretrain", "vocabulary": "old"}})}, 'the text "old"; valid: kept, new'),
    ({"stages": staged(last={"from": {"name": "pretrain", "rows": 1}})}, 'unknown key "rows"'),
    ({"stages": {"a": {"tasks": {}}}}, "this stage has no task"),
    ({"stages": {"a": {"tasks": {"seed": {}}}}}, "`seed` cannot be the name of a task"),
    ({"stages": {"a": {"tasks": {"b": {"from": "x"}}}}}, r"not-read\] stages.a.tasks.b.from"),
    ({"stages": {"a": {"budget": {"stepps": 1}}}}, 'stages.a.budget.stepps.*did you mean "steps"'),
    ({"vary": {"objective": ["mlm"]}}, r"varied-twice\].*`pretrain` sets `objective`"),
    ({"vary": {"optimizer": ["adamw"]}}, "sets `optimizer.lr`; valid: `pretrain.optimizer`, to vary"),
    ({"vary": {"finetune.from": [None]}}, r"not-read\].*starts from `pretrain`"),
    ({"metric": {"name": "val/sop/loss"}}, r"missing\] metric.task.*valid: stage: finetune, task: order"),
    ({"metric": {"name": "val/sop/loss", "stage": "finetun"}}, 'unknown stage "finetun"; did you mean'),
    (
        {"metric": {"name": "val/sop/loss", "stage": "finetune"}},
        r"missing\] metric.task: the stage `finetune`",
    ),
    ({"metric": {"name": "val/sop/loss", "stage": "finetune"}}, "valid: stage: finetune, task: order, stage: finetu"),
    ({"metric": {"name": "val/sop/loss", "stage": "finetune", "task": "ordre"}}, 'unknown stage "finetune/ordre"'),
    (
        {"stages": TWICE, "metric": {"name": "val/sop/loss", "task": "one"}},
        r"missing\] metric.stage: several stages have a task `one`",
    ),
    ({"vary": {"fintune.optimizer.lr": [1e-4]}}, 'unknown-stage.*"fintune".*did you mean "finetune"'),
    ({"vary": {"fintune.optimizer.lr": [1e-4]}}, "valid: pretrain, finetune, or a key of a spec for all stages"),
    ({"stages": None, "metric": {"name": "val/mlm/loss", "stage": "a"}}, "this study has no stages, so this would be"),
]


@pytest.mark.parametrize(("changes", "message"), FAULTS)
def test_a_mistake_is_told_with_what_would_do(known: Index, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(SpecError, match=message):
        study(known, **changes)


def test_a_stage_alone_may_say_whose_metric_it_is_where_it_has_one_task(known: Index) -> None:
    stages = {"pretrain": {"objective": "mlm"}, "a": {"from": "pretrain", **ONE}, "last": {"from": "pretrain"}}
    assert study(known, stages=stages, metric={"name": "val/sop/loss", "stage": "a"}).metric.stage == "a/one"


def test_a_task_alone_may_say_whose_metric_it_is(known: Index) -> None:
    assert study(known, metric={"name": "val/nsp/loss", "task": "next"}).metric.stage == "finetune/next"


def test_a_mistake_in_a_stage_has_its_line(tmp_path: Path, known: Index) -> None:
    path = tmp_path / "study.yaml"
    path.write_text(
        "base: bert-tiny\nvary: {attention: [mqa]}\nstages:\n  a: {objective: mlm}\n  b:\n    objective: sopp\n"
        "metric: val/sop/loss\n"
    )
    with pytest.raises(SpecError, match=r"objective \(study.yaml:6.*did you mean \"sop\""):
        plan(parse_study("mine", read_file(path, "study.yaml"), known), known, fingerprint=lambda spec: "text")


def test_a_study_without_stages_names_its_trials_as_it_did(known: Index) -> None:
    found = planned(known, stages=None, metric="val/mlm/loss", budget={"steps": 3}).trials[0]
    assert (found.stage, found.parent_id, found.label) == ("", "", "baseline, seed 0")
    assert "stage" not in found.document()
    assert found.identity == identity_of(found.spec, found.code, found.corpus)
