"""The same study, wherever its trials run: the same records."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest

import paribus
from paribus.durable import canonical

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
seeds: 2
budget: {steps: 6}
metric: {name: val/clm/loss, better: lower}
launcher: LAUNCHER
"""
LOCAL = {"name": "local"}
SLURM = {"name": "slurm", "executor": "local"}
RAY = {"name": "ray", "cpus": 0.5}


def records(folder: Path, launcher: dict[str, Any], jobs: int) -> dict[str, bytes]:
    """The results, by the identities of their trials."""
    path = folder / "study.yaml"
    path.write_text(STUDY.replace("FOLDER", str(folder)).replace("LAUNCHER", json.dumps(launcher)))
    planned = paribus.study(path, store=folder / f"{launcher['name']}-{jobs}")
    paribus.run(planned, jobs=jobs)
    return {record["identity"]: canonical(record["result"]) for record in planned.store.records()}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("everywhere")
    for number in range(12):
        (folder / f"{number}.txt").write_text(f"{number}. The cat sat on the mat. It was warm. " * (number % 3 + 4))
    return folder


@pytest.fixture(scope="module")
def expected(folder: Path) -> dict[str, bytes]:
    found = records(folder, LOCAL, 1)
    assert len(found) == 4
    assert len(set(found.values())) == 4
    return found


@pytest.mark.slow
@pytest.mark.timeout(900)  # each trial imports torch anew, which takes a minute on a machine that is busy
@pytest.mark.filterwarnings("default")  # of Ray's own making
@pytest.mark.parametrize(
    ("launcher", "library", "jobs"),
    [(LOCAL, "", 3), (SLURM, "submitit", 1), (SLURM, "submitit", 4), (RAY, "ray", 4)],
    ids=["local-3", "slurm-1", "slurm-4", "ray-4"],
)
def test_the_same_study_leaves_the_same_records(
    folder: Path, expected: dict[str, bytes], launcher: dict[str, Any], library: str, jobs: int
) -> None:
    if library and importlib.util.find_spec(library) is None:
        pytest.skip(f"{library} is not installed: pip install 'paribus[{launcher['name']}]'")
    assert records(folder, launcher, jobs) == expected
