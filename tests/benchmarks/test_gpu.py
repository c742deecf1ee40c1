"""Rehearsal of the GPU script on a CPU, so that its first run on a GPU does not fail on a typo."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PARTS = {
    "trials": 4, "fused": 7, "compiled": 6, "cells": 4,
    "decoder": 0, "masked": 0, "windows": 0, "decode": 0, "small-trials": 2,
}  # fmt: skip  # with the least number of checks


def gpu(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(ROOT / "benchmarks" / "gpu.py"), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=900)


@pytest.mark.slow
@pytest.mark.parametrize("part", PARTS)
def test_every_part_runs_on_a_cpu(part: str, tmp_path: Path) -> None:
    output = tmp_path / "results.json"
    ended = gpu("--rehearse", "--part", part, "--output", str(output))
    assert ended.returncode == 0, ended.stdout + ended.stderr
    document = json.loads(output.read_text())
    assert document["rehearsal"]
    results = document["parts"][part]
    assert len(results["checks"]) >= PARTS[part]
    assert results["claims"] or PARTS[part]
    assert all(claim["limit"] is None for claim in results["claims"])
    assert "REHEARSAL" in ended.stdout


@pytest.mark.slow
def test_without_a_gpu_it_says_so() -> None:
    import torch

    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    ended = gpu("--part", "decode")
    assert ended.returncode == 1
    assert ended.stderr.strip().endswith("use --rehearse to run the same code on a CPU with tiny sizes")


@pytest.mark.slow
def test_the_study_writes_its_results(tmp_path: Path) -> None:
    script = str(ROOT / "benchmarks" / "gpu_study.py")
    arguments = ["--rehearse", "--work", str(tmp_path / "work"), "--results", str(tmp_path / "results")]
    ended = subprocess.run(
        [sys.executable, script, *arguments], capture_output=True, text=True, check=False, timeout=900
    )
    assert ended.returncode in (0, 1), ended.stdout + ended.stderr  # 1: nothing is learned in four steps
    assert "4 of 4 trials have a record" in ended.stdout
    assert "position=alibi" in (tmp_path / "results" / "RESULTS.md").read_text()
