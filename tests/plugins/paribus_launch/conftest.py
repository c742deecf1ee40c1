"""A study of eight small trials, four of which start from the others, one of a program, and what they leave."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

import paribus
from paribus.storage.atomic import canonical_json
from paribus.storage.store import Store

STUDY = """
base:
  preset: gpt-tiny
  dims: {width: 16, layers: 1, heads: 2, length: 16}
  dropout: 0.1
  tokenizer: bytes
  corpus: {name: text, path: ["FOLDER/*.txt"]}
  data: {batch: 4, validation: 8}
vary:
  attention: [mqa]
stages:
  pretrain: {budget: {steps: 6}}
  finetune: {from: pretrain, optimizer.lr: 1e-4, budget: {steps: 4}}
seeds: 2
metric: {name: val/clm/loss, stage: finetune, better: lower}
launcher: LAUNCHER
"""
TRIALS = 8
PROGRAM = """
import argparse, os, sys, time
from pathlib import Path
import numpy as np
from paribus import witness
parser = argparse.ArgumentParser()
parser.add_argument("--way")
parser.add_argument("--seed", type=int)
args = parser.parse_args()
if args.way == "fails":
    sys.exit("it has failed")
assert not Path("own").exists()
Path("own").mkdir()
numbers = np.array(Path("data/numbers.txt").read_text().split(), dtype=int)
w, draws = witness(), np.random.default_rng(args.seed)
weights = {"layer": draws.normal(size=4)}
w.model(weights)
for step in range(3):
    x = draws.permutation(numbers)
    w.batch(x, x)
    w.batch(numbers, numbers, split="validation")
    w.log(step, val_loss=weights["layer"].sum() + x[0] + (9 + args.seed / 100 if args.way == "other" else 0))
    time.sleep(float(os.environ.get("PROGRAM_SECONDS", 0)))
"""


@pytest.fixture(scope="package")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of the corpus."""
    folder = tmp_path_factory.mktemp("everywhere")
    for number in range(12):
        (folder / f"{number}.txt").write_text(f"{number}. The cat sat on the mat. It was warm. " * (number % 3 + 4))
    return folder


def write_study(folder: Path, launcher: Mapping[str, Any], *, to: Path) -> Path:
    """Write the study file with a launcher."""
    path = to / "study.yaml"
    path.write_text(STUDY.replace("FOLDER", str(folder)).replace("LAUNCHER", json.dumps(launcher)))
    return path


def write_program_study(launcher: Mapping[str, Any] | str, *, to: Path) -> Path:
    """Write the script of a program with its input, and a study of it, which is run in the folder `to`."""
    (to / "data").mkdir(parents=True)
    (to / "data" / "numbers.txt").write_text("1 2 3 4 5 6 7 8 9")
    (to / "train.py").write_text(PROGRAM)
    document = {
        "name": "study",
        "program": f"{sys.executable} train.py",
        "base": {"way": "base"},
        "vary": {"way": ["other", "fails"]},
        "seeds": 5,
        "stop": "when-decided",
        "metric": {"name": "val_loss", "from": "witness"},
        "inputs": ["data"],
        "launcher": launcher,
    }
    path = to / "study.yaml"
    path.write_text(json.dumps(document))  # JSON is YAML
    return path


def kill_and_resume(path: Path) -> None:
    """Run a study in its folder, kill the command as soon as a program has logged a value, and run it again."""
    command = [sys.executable, "-m", "paribus", "run", path.name, "--jobs", "2"]
    slow = {**os.environ, "PROGRAM_SECONDS": "1"}
    process = subprocess.Popen(command, cwd=path.parent, env=slow, stderr=subprocess.DEVNULL)
    end = time.monotonic() + 120
    while not any("step" in file.read_text() for file in path.parent.glob("runs/study/*/progress.jsonl")):
        assert time.monotonic() < end
        assert process.poll() is None
        time.sleep(0.05)
    process.kill()
    process.wait()
    assert not list(path.parent.glob("runs/study/*/record.json"))
    subprocess.run(command, cwd=path.parent, stdout=subprocess.DEVNULL, check=False)  # a variant fails


def check_program_study(launcher: Mapping[str, Any], folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kill a study of a program, resume it, and compare its results with those of a local one."""
    results = []
    for name, node in (("local", {"name": "local"}), ("other", launcher)):
        path = write_program_study(node, to=folder / name)
        kill_and_resume(path)
        monkeypatch.chdir(path.parent)  # where the command finds its files
        results.append(program_results(path))
    common = results[0].keys() & results[1].keys()
    assert len(common) >= 6
    assert all(results[0][identity] == results[1][identity] for identity in common)


def program_results(path: Path) -> dict[str, bytes]:
    """Check the verdicts, costs and certificate of a study of the program; return the results of its trials."""
    planned = paribus.study(path, store=path.parent / "runs")
    table = paribus.compare(planned)
    other, failing = table.rows
    assert (other.kind, failing.kind) == ("worse", "failed")
    assert all((cost := other.costs[unit].value) is not None and cost > 0 for unit in ("seconds", "cpu_seconds"))
    assert "it has failed" in " ".join(table.notes)
    assert (table.certificates["way=other"].failures, table.certificates["way=other"].unwitnessed) == ((), ())
    assert table.certificates["way=other"].equal_tensors == 1
    results = {record["identity"]: canonical_json(record["result"]) for record in planned.store.records()}
    assert 6 <= len(results) < 10  # decided before all seeds ran
    return results


def fingerprint(store: Store) -> str:
    """Hash the results of all trials: losses, measures, and digests of batches, parameters and optimizer."""
    results = {record["identity"]: canonical_json(record["result"]) for record in store.records()}
    assert len(results) == TRIALS
    assert len(set(results.values())) == TRIALS  # all results differ
    digest = hashlib.sha256()
    for identity in sorted(results):
        digest.update(identity.encode() + b"\0" + results[identity] + b"\0")
    return digest.hexdigest()
