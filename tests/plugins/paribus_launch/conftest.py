"""A study of eight small trials, four of which start from the others, and a fingerprint of its results."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

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


def fingerprint(store: Store) -> str:
    """Hash the results of all trials: losses, measures, and digests of batches, parameters and optimizer."""
    results = {record["identity"]: canonical_json(record["result"]) for record in store.records()}
    assert len(results) == TRIALS
    assert len(set(results.values())) == TRIALS  # all results differ
    digest = hashlib.sha256()
    for identity in sorted(results):
        digest.update(identity.encode() + b"\0" + results[identity] + b"\0")
    return digest.hexdigest()
