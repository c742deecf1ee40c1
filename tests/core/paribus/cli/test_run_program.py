"""Studies of programs on the command line: verdicts, what withholds them, edits, and other designs."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import paribus

Cli = Callable[..., Any]
SCRIPT = """
import argparse, json, random
p = argparse.ArgumentParser()
p.add_argument("--attention", default="mha")
p.add_argument("--lr", type=float, default=0.1)
p.add_argument("--seed", type=int, default=0)
a = p.parse_args()
noise = random.Random(a.seed)
loss = 5 + noise.random()
with open("metrics.jsonl", "w") as file:
    for step in range(1, 4):
        loss -= {"mha": 1.0, "gqa": 1.1, "mqa": 1.3}[a.attention] * a.lr * noise.gauss(1, 0.02)
        print(json.dumps({"step": step, "val_loss": loss, "time": step}), file=file)
"""
WITNESSED = """
import argparse, os, numpy as np
from paribus import witness
p = argparse.ArgumentParser()
p.add_argument("--way", default="base")
p.add_argument("--seed", type=int, default=0)
a = p.parse_args()
w = witness()
rng = np.random.default_rng(a.seed)
size = 3 if a.way == "reshaped" else 2
weights = {"swap": np.random.default_rng([a.seed, 1]).normal(size=size)}
if a.way == "generator":
    rng.normal()
weights["kept"] = rng.normal(size=4) * (2 if a.way == "scaled" else 1)
if a.way == "renamed":
    weights = {f"my_{name}": value for name, value in weights.items()}
weights["norm"] = np.ones(2)
if a.way not in ("late", "silent"):
    w.model(weights)
data = np.random.default_rng(a.seed + 7 + (a.way == "data"))
loss = 3.0 + weights.get("kept", rng.normal(size=4)).sum() / 100
for step in range(1, 3 if a.way == "short" else 4):
    x = data.integers(0, 9, (2, 2 if a.way == "tokens" else 3))
    if a.way != "silent":
        w.batch(x, np.where(x > 7, -100, x) if a.way == "targets" else x)
    loss -= 0.1 * x.mean() + (0 if a.way in ("base", "ignored") else 0.001 * step * (1 + a.seed))
    if a.way != "unevaluated":
        split = "test" if a.way == "other-split" else "validation"
        w.batch(np.arange(8 if a.way == "evaluation" else 9), split=split)
    w.log(4 if a.way == "short" and step == 2 else step, val_loss=loss)
if a.way == "late":
    w.model(weights)
"""
DISTRIBUTED = """
import argparse, torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from paribus import witness
p = argparse.ArgumentParser()
p.add_argument("--wrap")
p.add_argument("--way")
p.add_argument("--seed", type=int)
a = p.parse_args()
dist.init_process_group("gloo")
is_other = dist.get_rank() == 1
w = witness()
w.seed_everything(a.seed + (a.way == "weights" and is_other))
model = nn.Sequential(nn.Embedding(16, 6), nn.Tanh() if a.way == "tanh" else nn.ReLU(), nn.Linear(6, 16))
model = nn.parallel.DistributedDataParallel(model) if a.wrap == "ddp" else fully_shard(model)
w.model(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
order = torch.Generator().manual_seed(10 * a.seed + dist.get_rank() + (a.way == "data" and is_other))
for step in range(2):
    x = torch.randint(16, (4, 8), generator=order)
    w.batch(x, x)
    w.batch(x, x, split="validation")
    loss = nn.functional.cross_entropy(model(x).flatten(0, 1), x.flatten())
    loss.backward()
    optimizer.step()
    total = loss.detach().clone()
    dist.all_reduce(total)
    w.log(step, val_loss=total)
dist.destroy_process_group()
"""
WITNESSED_STUDY: dict[str, Any] = {
    "program": f"{sys.executable} train.py",
    "base": {"way": "base"},
    "seeds": 2,
    "metric": {"name": "val_loss", "from": "witness"},
}
STUDY: dict[str, Any] = {
    "program": "python3 train.py",
    "base": {"attention": "mha", "lr": 0.1},
    "vary": {"attention": ["gqa", "mqa"]},
    "seeds": 3,
    "metric": {"name": "val_loss", "from": "metrics.jsonl", "margin": 0.001},
}


@pytest.fixture
def write(cli: Cli) -> Callable[..., str]:
    """Write a script and a study in the current folder, and return the name of the study's file."""

    def write_files(script: str = SCRIPT, **changes: Any) -> str:
        Path("train.py").write_text(script)
        Path("study.yaml").write_text(json.dumps({**STUDY, "name": "mine", **changes}))
        return "study.yaml"

    return write_files


def rows(cli: Cli, study: str) -> dict[str, Any]:
    result = cli("run", study, "--jobs", "2", "--json")
    assert result.out, result.err
    table: dict[str, Any] = json.loads(result.out)
    return table


def test_two_options_of_a_script_get_verdicts_without_a_certificate(cli: Cli, write: Callable[..., str]) -> None:
    study = write()
    table = rows(cli, study)
    assert [(row["variant"], row["verdict"], row["n"]) for row in table["rows"]] == [
        ("attention=gqa", "better", 3),
        ("attention=mqa", "better", 3),
    ]
    assert all(row["seconds"] > 0 and row["cpu_seconds"] > 0 for row in table["rows"])
    shown = cli("compare", study)
    assert shown.code == 0
    assert "✓" not in shown.out
    unknown = "initial weights, batches, tokens, targets, evaluation batches"
    assert "· attention=gqa: same files (train.py); repeated" in (text := " ".join(shown.out.split()))
    assert text.count(f"the same {unknown}.") == 1
    assert "nothing to run" in cli("run", study).err
    assert cli("compare", study, "--latex").out.count(r"\toprule") == 2
    assert cli("report", study, "-o", "r.html").code == 0
    assert "3 done" in cli("status", study).out


@pytest.mark.thorough
def test_the_metric_may_be_the_mean_of_the_last_points(cli: Cli, write: Callable[..., str]) -> None:
    changes: dict[str, Any] = {"vary": {"attention": ["gqa"]}, "seeds": 2}
    single = rows(cli, write(**changes))
    mean = rows(cli, write(**changes, metric={**STUDY["metric"], "last": 2}))
    values = [row["val_loss"] for row in paribus.records("study.yaml") if row["step"] > 1]
    assert len(values) == 8  # no trial ran again
    assert mean["baseline"]["mean"] + mean["rows"][0]["mean"] == pytest.approx(sum(values) / 4)
    assert (mean["metric"]["last"], "last" in single["metric"]) == (2, False)
    assert "(mean of the last 2 evaluations)" in cli("compare", "study.yaml").out
    assert "mean of the last 2 evaluations" in cli("calibrate", "study.yaml").out
    few = cli("compare", write(**changes, metric={**STUDY["metric"], "last": 4}))
    assert "error[too-few-evaluations] metric.last" in few.err
    assert "1 to 3" in few.err


@pytest.mark.thorough
def test_trials_of_a_program_are_compared_one_by_one_and_have_no_model(cli: Cli, write: Callable[..., str]) -> None:
    rows(cli, write(vary={"attention": ["gqa"]}, seeds=2))
    trials = sorted(str(path.parent) for path in Path("runs/mine").glob("*/record.json"))
    assert "val_loss" in cli("compare-trials", trials[0], trials[1]).out
    same = cli("compare-trials", "runs/mine", "runs/mine", "--metric", "val_loss:lower")
    assert "identical" in same.out
    assert "files train.py" in same.out
    assert "this is a trial of a program" in cli("generate", trials[0], "x").err


def test_the_plan_and_check_show_the_commands(cli: Cli, write: Callable[..., str]) -> None:
    study = write()
    command = "python3 train.py --attention=gqa --lr=0.1 --seed=0"
    assert f"attention=gqa: {command}" in cli("check", study).out
    assert json.loads(cli("check", study, "--json").out)["commands"]["attention=gqa"] == command
    assert command in cli("run", study, "--plan").out
    assert json.loads(cli("run", study, "--plan", "--json").out)["pending"] == 9


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("edit", "verdict", "finding"),
    [
        (('1.1, "mqa"', '1.0, "mqa"'), "withheld (no effect)", "does the program read `attention`?"),
        (("Random(a.seed)", "Random(1)"), "withheld (the seed has no effect)", "does the program read `seed`?"),
    ],
)
def test_an_option_that_the_program_ignores_withholds_the_verdict(
    cli: Cli, write: Callable[..., str], edit: tuple[str, str], verdict: str, finding: str
) -> None:
    study = write(SCRIPT.replace(*edit), vary={"attention": ["gqa"]})
    assert [row["verdict"] for row in rows(cli, study)["rows"]] == [verdict]
    assert finding in " ".join(cli("compare", study).out.split())


def test_a_metric_that_is_too_coarse_is_told_from_an_option_that_is_ignored(
    cli: Cli, write: Callable[..., str]
) -> None:
    script = SCRIPT.replace('"time": step', '"runtime": random.random(), "rounded": round(loss)')
    study = write(script, vary={"attention": ["gqa"]}, metric={"name": "rounded", "from": "metrics.jsonl"})
    assert [row["kind"] for row in rows(cli, study)["rows"]] == ["identical"]
    text = "rounded is the same, and other numbers differ (val_loss): the metric"
    assert text in " ".join(cli("compare", study).out.split())


@pytest.mark.thorough
def test_only_a_fair_pair_of_a_witnessed_script_is_certified(cli: Cli, write: Callable[..., str]) -> None:
    findings = {
        "reshaped": "✓ 2/3 tensors equal at step 0; swap reshaped; 1.12\N{MULTIPLICATION SIGN} parameters",
        "scaled": "✓ 2/3 tensors equal at step 0; kept at another scale",
        "generator": "✗ leaked seed: 1 of 3 tensors",
        "data": "✗ other batches",
        "short": "✗ other budget: 3 batches against 2",
        "tokens": "✗ other budget: 18 tokens in batches against 12",
        "targets": "✗ other budget: 18 targets in batches",
        "evaluation": "✗ other budget: 27 tokens in validation batches against 24",
        "ignored": "✗ no effect",
        "renamed": "· 1/3 tensors equal at step 0; not witnessed: initial weights",
        "late": "· not witnessed: initial weights",
        "silent": "· not witnessed: initial weights, batches, tokens, targets",
        "other-split": "· 3/3 tensors equal at step 0; not witnessed: evaluation batches",
        "unevaluated": "· 3/3 tensors equal at step 0; not witnessed: evaluation batches",
    }
    study = write(WITNESSED, **WITNESSED_STUDY, vary={"way": [*findings]})
    rows(cli, study)
    shown = " ".join(cli("compare", study).out.split())
    for way, text in findings.items():
        mark, _, start = text.partition(" ")
        assert f"{mark} way={way}: {start}" in shown
    unknown = "initial weights (way=renamed, way=late, way=silent), batches (way=silent), tokens (way=silent)"
    assert f"had the same {unknown}" in shown
    fair = write(WITNESSED, **WITNESSED_STUDY, vary={"way": ["reshaped"]})
    assert "Not certified" not in cli("compare", fair).out


@pytest.mark.slow
@pytest.mark.timeout(900)  # each trial starts three processes, two of which import torch
@pytest.mark.parametrize(
    ("wrap", "weights"), [("ddp", "✗ way=weights: no effect"), ("fsdp", "✗ way=weights: leaked seed: 3 of 3 tensors")]
)
def test_the_ranks_of_a_distributed_script_are_compared_one_by_one(
    cli: Cli, write: Callable[..., str], wrap: str, weights: str
) -> None:
    """DistributedDataParallel copies the weights of rank 0 to the others; of sharded ones, each rank has a part."""
    command = f"{sys.executable} -m torch.distributed.run --standalone --nproc-per-node 2 train.py"
    study = write(
        DISTRIBUTED,
        **{**WITNESSED_STUDY, "seeds": 1, "program": f"{command} --wrap={wrap}"},
        vary={"way": ["tanh", "data", "weights"]},
    )
    rows(cli, study)
    shown = " ".join(cli("compare", study).out.split())
    assert "✓ way=tanh: 3/3 tensors equal at step 0" in shown
    assert "✗ way=data: other batches" in shown
    assert weights in shown
    (record, *_) = Path("runs/mine").glob("*/record.json")
    assert (
        json.loads(record.read_text())["body"]["result"]["certificate"]["witness"]["batches"]["train"]["tokens"] == 128
    )


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("way", "effect", "finding"),
    [
        ("generator", "weights", "kept initialised differently"),
        ("data", "batches", "other batches"),
        ("short", "budget", "3 batches against 2"),
    ],
)
def test_what_an_option_changes_on_purpose_is_no_failure(
    cli: Cli, write: Callable[..., str], way: str, effect: str, finding: str
) -> None:
    study = write(WITNESSED, **WITNESSED_STUDY, vary={"way": [way]})
    rows(cli, study)
    write(WITNESSED, **WITNESSED_STUDY, vary={"way": [way]}, effects={"way": effect})
    assert "nothing to run" in cli("run", study).err  # it is no part of a trial
    shown = " ".join(cli("compare", study).out.split())
    assert f"✓ way={way}: " in shown
    assert finding in shown


def test_an_edited_script_runs_again_and_a_comment_does_not(cli: Cli, write: Callable[..., str]) -> None:
    study = write(vary={"attention": ["gqa"]}, seeds=2)
    rows(cli, study)
    write(f"# comment\n{SCRIPT}", vary={"attention": ["gqa"]}, seeds=2)
    assert "nothing to run" in cli("run", study).err
    write(SCRIPT.replace("5 + noise", "6 + noise"), vary={"attention": ["gqa"]}, seeds=2)
    assert cli("status", study).out.count("2 pending") == 2
    assert "because of changes since: train.py" in cli("compare", study).err


@pytest.mark.thorough
def test_verify_keeps_the_records_of_a_script_that_computes_the_same(cli: Cli, write: Callable[..., str]) -> None:
    changes = {"vary": {"attention": ["gqa"]}, "seeds": 2}
    study = write(**changes)
    before = rows(cli, study)["rows"]
    write(SCRIPT.replace("loss = 5 + noise.random()", "loss = noise.random() + 5"), **changes)
    assert "4 records kept" in cli("verify", study).out
    assert json.loads(cli("compare", study, "--json").out)["rows"] == before
    write(SCRIPT.replace("5 + noise", "6 + noise"), **changes)
    assert "differs first in `val_loss` at step 1" in cli("verify", study).out


@pytest.mark.parametrize("verb", ["compare", "run"])
def test_a_script_in_another_folder_is_missing_and_not_changed(
    cli: Cli, write: Callable[..., str], monkeypatch: pytest.MonkeyPatch, verb: str
) -> None:
    study, folder = Path(write()).resolve(), Path("elsewhere").resolve()
    folder.mkdir()
    monkeypatch.chdir(folder)
    result = cli(verb, str(study))
    assert result.code == 2
    assert f"there is no `train.py` in {folder}" in result.err
    assert f"cd {study.parent}" in result.err


@pytest.mark.thorough
def test_a_missing_file_of_the_command_is_named_with_its_folder(cli: Cli, write: Callable[..., str]) -> None:
    Path("model.cfg").write_text("")
    study = write(script=f"import sys; sys.argv.remove('model.cfg')\n{SCRIPT}", program="python train.py model.cfg")
    assert cli("run", study).code == 0
    Path("model.cfg").unlink()
    assert f"model.cfg (not in {Path.cwd()})" in cli("compare", study).err


def test_a_program_that_fails_is_reported_once_with_its_last_line(cli: Cli, write: Callable[..., str]) -> None:
    study = write(base={"attention": "mha", "heads": 3}, vary={"attention": ["gqa"]}, seeds=1)
    result = cli("run", study)
    assert result.code != 0
    assert "unrecognized arguments: --heads=3; options are passed as `--{key}={value}`" in result.err
    assert "Traceback" not in result.err


def test_a_study_in_which_every_variant_fails_alike_is_stopped(cli: Cli, write: Callable[..., str]) -> None:
    study = write(f"open('config.json')\n{SCRIPT}", seeds=5)
    Path("config.json").touch()
    result = cli("run", study)
    assert "all variants failed for the same reason" in result.err
    assert "add `inputs: [config.json]`" in result.err
    assert cli("status", study).out.count("pending") == 3
    study = write(SCRIPT.replace("loss = 5", "assert a.seed or a.attention != 'mqa'; loss = 5"), seeds=2)
    cli("run", study)
    assert cli("status", study).out.count("2 done") == 2  # a variant that fails alone stops no other


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"base": {"seed": 1}}, "base.seed (study.yaml:1): `seed` is the option of the seed"),
        ({"base": {"program": 1}}, "`program` is a key of the spec itself"),
        ({"budget": {"steps": 3}}, 'unknown key "budget"'),
        ({"options": "{key}"}, "no template for an option"),
        ({"inputs": ["data"]}, "there is no `data`"),
        ({"metric": {"name": "loss", "from": "m.txt"}}, "`m.txt` has no known format"),
        ({"metric": "loss"}, "metric"),
        ({"metric": {"name": "acc", "from": "m.json"}}, "metric.better (study.yaml:1)"),
        ({"program": 3}, "program"),
        ({"vary": {"lr": []}}, "expected a list of values"),
        ({"effects": {"lr": "budget"}}, "`lr` is not varied"),
        ({"effects": {"attention": ["weights", "data"]}}, "valid: weights, batches, budget"),
        ({"worth": {"option": "steps", "factors": [2]}}, "`steps` has no positive number in `base`"),
        ({"worth": {"option": "attention", "factors": [0]}}, "must be > 0"),
        ({"vary": None}, "varies nothing"),
        ({"vary": {"attention": ["mha"]}}, "vary (study.yaml:1): no variant is left to compare: attention=mha equals"),
        ({"vary": ["lr"]}, "vary: {lr: […, …]}"),
    ],
)
def test_a_wrong_study_is_one_clear_error(
    cli: Cli, write: Callable[..., str], changes: dict[str, Any], message: str
) -> None:
    result = cli("check", write(**changes))
    assert result.code == 2
    assert message in result.err
    assert "bug" not in result.err


@pytest.mark.parametrize(
    ("changes", "warning"),
    [
        ({"vary": {"atention": ["gqa"]}}, "train.py names no option `atention`: did you mean `attention`?"),
        ({"seed_option": "sed"}, "train.py names no option `sed`: did you mean `seed`?"),
        ({}, ""),
    ],
)
def test_an_option_that_the_script_does_not_name_is_doubted(
    cli: Cli, write: Callable[..., str], changes: dict[str, Any], warning: str
) -> None:
    assert json.loads(cli("check", write(**changes), "--json").out)["warnings"] == ([warning] if warning else [])


def test_a_program_that_is_not_on_the_path_is_refused(cli: Cli, write: Callable[..., str]) -> None:
    result = cli("check", write(program="pyhton train.py"))
    assert (result.code, len(result.err.splitlines())) == (2, 1)
    assert "no program `pyhton` on the PATH" in result.err


@pytest.mark.parametrize(
    ("key", "changes", "message"),
    [
        ("program", {"programm": "python train.py"}, 'unknown key "programm"; did you mean "program"?'),
        ("program", {"Program": "python train.py"}, 'did you mean "program"?'),
        ("program", {}, "`program` is missing"),
        ("seeds", {"bugdet": {"steps": 3}}, 'unknown key "bugdet": only studies of models'),
        ("seeds", {"input": ["train.py"]}, 'did you mean "inputs"?'),
    ],
)
def test_a_misspelt_key_of_either_kind_of_study_is_the_only_error(
    cli: Cli, write: Callable[..., str], key: str, changes: dict[str, Any], message: str
) -> None:
    study = Path(write(**changes))
    study.write_text(json.dumps({name: value for name, value in json.loads(study.read_text()).items() if name != key}))
    result = cli("check", str(study))
    assert (result.code, len(result.err.splitlines())) == (2, 1)
    assert message in result.err


@pytest.mark.thorough
def test_a_variant_that_halves_the_steps_is_worth_twice_the_compute(cli: Cli, write: Callable[..., str]) -> None:
    script = """
import argparse, json, math, random
p = argparse.ArgumentParser()
p.add_argument("--attention"), p.add_argument("--steps", type=int), p.add_argument("--seed", type=int)
a = p.parse_args()
noise = random.Random(a.seed * 1000 + a.steps).gauss(0, 0.001)
loss = 9 - math.log(a.steps * {"mha": 1, "gqa": 2, "mqa": 9}[a.attention]) + noise
json.dump([{"val_loss": loss - 1}, {"val_loss": loss + 1}], open("m.json", "w"))
"""
    study = write(
        script,
        base={"attention": "mha", "steps": 100},
        metric={"name": "val_loss", "from": "m.json", "last": 2},  # of the baseline at other budgets too
        worth={"option": "steps", "factors": [0.5, 1.5, 2.5, 4]},
    )
    answers = {it["variant"]: it["units"]["steps"] for it in rows(cli, study)["worth"]["settings"][0]["variants"]}
    assert answers["attention=gqa"]["value"] == pytest.approx(2, rel=0.02)
    assert 1.8 < answers["attention=gqa"]["low"] < answers["attention=gqa"]["high"] < 2.2
    assert answers["attention=mqa"]["value"] is None
    assert answers["attention=mqa"]["is_above"]
    shown = " ".join(cli("compare", study).out.split())
    assert "attention=mqa: > 4.00\N{MULTIPLICATION SIGN}" in shown
    assert "baseline, budget x 0.5 3 done" in " ".join(cli("status", study).out.split())
    assert cli("report", study, "-o", "r.html").code == 0
    assert "worth in compute" in Path("r.html").read_text()


def test_a_budget_that_the_program_ignores_is_reported(cli: Cli, write: Callable[..., str]) -> None:
    script = SCRIPT.replace("a = p.parse_args()", "p.add_argument('--epochs')\na = p.parse_args()")
    base, worth = {"attention": "mha", "epochs": 5}, {"option": "epochs", "factors": [0.5]}
    study = write(script, base=base, worth=worth, vary={"attention": ["gqa"]}, seeds=2)
    assert "baseline, budget x 0.4: python3 train.py --attention=mha --epochs=2 --seed=0" in cli("check", study).out
    rows(cli, study)
    assert "the budget has no effect" in " ".join(cli("compare", study).out.split())


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("changes", "kinds"),
    [
        ({"vary": {"attention": ["gqa"]}, "tune": {"lr": [0.2], "seeds": 2}}, ["better", "better"]),
        ({"vary": None, "design": "ladder", "changes": [{"attention": "gqa"}, {"lr": 0.2}]}, ["better", "better"]),
        ({"vary": {"attention": ["gqa"], "lr": [0.2]}, "design": "factorial"}, ["better"] * 3),
        ({"vary": {"attention": ["gqa"]}, "scales": {"s": {"lr": 0.1}, "m": {"lr": 0.2}}}, ["better", "better"]),
        ({"vary": {"attention": ["mqa"]}, "stop": "when-decided", "seeds": 12}, ["better"]),
    ],
)
def test_every_design_works_on_a_program(
    cli: Cli, write: Callable[..., str], changes: dict[str, Any], kinds: list[str]
) -> None:
    assert [row["kind"] for row in rows(cli, write(**changes))["rows"]] == kinds
    assert cli("calibrate", "study.yaml").code == 0
