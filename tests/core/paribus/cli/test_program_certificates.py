"""What the certificates of studies of programs find: scripts that are not repeatable, or change more than an option."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Cli = Callable[..., Any]
SCRIPT = """
import argparse, json, os, random
p = argparse.ArgumentParser()
p.add_argument("--way", default="base")
p.add_argument("--seed", type=int, default=0)
a = p.parse_args()
loss = 3 + random.Random(a.seed).random()
{}
json.dump({"step": 1, "loss": loss}, open("m.json", "w"))
"""
REPEATABLE = "loss -= 0.1 * (a.way != 'base') * (1 + a.seed / 9)"
RARE = "loss -= 0.1 * (a.way != 'base' and a.seed == 1)"
NOISY = "loss += random.gauss(0, 1e-6) - 0.1 * (a.way != 'base')"
LEAKING = """
path = os.path.dirname(os.path.realpath(__file__)) + "/state.txt"
state = float(open(path).read()) if os.path.exists(path) else 9
open(path, "w").write(str(state * 0.9))
loss += state
"""
WITNESSED = """
import argparse, sys, numpy as np
from paribus import witness
p = argparse.ArgumentParser()
p.add_argument("--way", default="base")
p.add_argument("--seed", type=int, default=0)
a = p.parse_args()
w = witness()
rng = np.random.default_rng(0 if a.way == "one-seed" else a.seed)
weights = {"norm": np.ones(12 if a.way == "larger" else 4), "kept": rng.normal(size=4)}
weights["tied"] = weights["kept"]
w.model(weights)
if a.way == "replaced":
    weights["kept"] += 1
loss = 3 + weights["kept"].sum()
for step in range(3):
    x = rng.integers(0, 9, (2, 3))
    w.batch(x, x)
    loss -= 0.1 * x.mean() + 0.01 * len(a.way) * (1 + a.seed / 9)
    w.batch(x, x, split="validation")
    w.log(step, loss=loss)
if a.way == "best":
    w.log(step + 1, loss=loss - 1)
"""
STUDY: dict[str, Any] = {
    "name": "mine",
    "program": f"{sys.executable} train.py",
    "base": {"way": "base"},
    "vary": {"way": ["other"]},
    "seeds": 3,
    "metric": {"name": "loss", "from": "m.json", "margin": 0.01},
}


@pytest.fixture
def compared(cli: Cli) -> Callable[..., tuple[dict[str, Any], str]]:
    """Run a study of a script, and return its table and what `compare` prints."""

    def compare(script: str, *options: str, **changes: Any) -> tuple[dict[str, Any], str]:
        Path("train.py").write_text(script)
        Path("study.yaml").write_text(json.dumps({**STUDY, **changes}))
        table: dict[str, Any] = json.loads(cli("run", "study.yaml", "--jobs", "1", "--json", *options).out)
        return table, " ".join(cli("compare", "study.yaml").out.split())

    return compare


Compared = Callable[..., tuple[dict[str, Any], str]]


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("body", "verdict", "finding"),
    [
        (REPEATABLE, "better", "; repeated"),
        (RARE, "inconclusive (needs n ≥ ~", "all values are the baseline's (seed 0, 2 only)"),
        (NOISY, "better", "not repeatable (differs by"),
        (LEAKING, "withheld (no effect beyond noise)", "not repeatable (differs by"),
    ],
    ids=["repeatable", "on one seed", "noisy", "leaking"],
)
def test_a_trial_of_the_baseline_is_run_again(compared: Compared, body: str, verdict: str, finding: str) -> None:
    table, shown = compared(SCRIPT.replace("{}", body, 1))
    assert [row["verdict"].startswith(verdict) for row in table["rows"]] == [True]
    assert finding in shown
    assert ("! Not repeatable" in shown) == (body in (NOISY, LEAKING))


@pytest.mark.thorough
def test_a_skipped_repetition_is_made_up_for(cli: Cli, compared: Compared) -> None:
    script = SCRIPT.replace("{}", REPEATABLE, 1)
    assert "no trial was run again" in compared(script, "--no-repeat")[1]
    assert "runs again" in cli("run", "study.yaml").err
    assert "nothing to run" in cli("run", "study.yaml").err
    assert "; repeated" in " ".join(cli("compare", "study.yaml").out.split())


@pytest.mark.thorough
def test_what_changes_besides_the_model_is_found(compared: Compared) -> None:
    findings = {
        "other": "✓ way=other: 3/3 tensors equal at step 0; same files (train.py); same environment; same batches",
        "larger": "✓ way=larger: 2/3 tensors equal at step 0; norm reshaped; 2\N{MULTIPLICATION SIGN} parameters",
        "best": "✗ way=best: other budget: measured at step 3 instead of 2; if `way` changes this on purpose:"
        " `effects: {way: budget}`",
        "one-seed": "same batches (seed 0 only); same validation batches (seed 0 only)",
    }
    metric = {"name": "loss", "from": "witness"}
    table, shown = compared(WITNESSED, metric=metric, vary={"way": [*findings]})
    for text in findings.values():
        assert text in shown
    assert shown.count("on purpose") == 2
    assert [row["parameters_ratio"] for row in table["rows"]] == [1, 2, 1, 1]
    effects = ["weights", "batches", "budget"]
    table, _ = compared(WITNESSED, metric=metric, vary={"way": ["best", "one-seed"]}, effects={"way": effects})
    assert table["rows"][0]["kind"] != "withheld"
    assert table["rows"][1]["verdict"] == "withheld (another seed)"
