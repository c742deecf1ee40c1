"""A study of eight small trials, of which four begin from the other four, and what came of it in one fingerprint."""

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
    """Where the corpus lies."""
    folder = tmp_path_factory.mktemp("everywhere")
    for number in range(12):
        (folder / f"{number}.txt").write_text(f"{number}. The cat sat on the mat. It was warm. " * (number % 3 + 4))
    return folder


def written(folder: Path, launcher: Mapping[str, Any], *, to: Path) -> Path:
    """The study's file, with this launcher."""
    path = to / "study.yaml"
    path.write_text(STUDY.replace("FOLDER", str(folder)).replace("LAUNCHER", json.dumps(launcher)))
    return path


def fingerprint(store: Store) -> str:
    """Of the results of all trials: losses, measures, and digests of batches, parameters and optimizer, to the bit."""
    found = {record["identity"]: canonical_json(record["result"]) for record in store.records()}
    assert len(found) == TRIALS
    assert len(set(found.values())) == TRIALS  # no two of them are the same
    whole = hashlib.sha256()
    for identity in sorted(found):
        whole.update(identity.encode() + b"\0" + found[identity] + b"\0")
    return whole.hexdigest()
