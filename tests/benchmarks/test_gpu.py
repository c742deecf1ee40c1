"""Rehearsal of the GPU script on a CPU, so that its first run on a GPU does not fail on a typo."""

from __future__ import annotations

import json
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import pytest
from tests.gpu.test_parts import PARTS as TESTED_PARTS

ROOT = Path(__file__).parents[2]
PARTS = {
    "device": 15, "trials": 4, "fused": 13, "compiled": 6, "steps": 16, "reduce-overhead": 10, "studies": 1,
    "cells": 10, "decoder": 0, "masked": 0, "windows": 0, "decode": 0, "small-trials": 2,
}  # fmt: skip  # with the least number of checks


def gpu(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(ROOT / "benchmarks" / "gpu.py"), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=900)


def check(part: str, file: Path) -> dict[str, Any]:
    """Assert that a part succeeded, and return its document."""
    document: dict[str, Any] = json.loads(file.read_text())
    assert document["rehearsal"]
    assert document["part"] == part
    assert not document["error"]
    assert len(document["checks"]) >= PARTS[part]
    assert document["claims"] or PARTS[part]
    assert all(claim["limit"] is None for claim in document["claims"])
    return document


@pytest.mark.slow
@pytest.mark.parametrize("part", PARTS)
def test_every_part_runs_on_a_cpu(part: str, tmp_path: Path) -> None:
    ended = gpu("--rehearse", "--part", part, "--output", str(tmp_path))
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert check(part, tmp_path / f"{part}.json")["machine"]["versions"]["torch"]
    assert "REHEARSAL" in ended.stdout


@pytest.mark.slow
def test_parts_run_apart_and_end_with_the_time(tmp_path: Path) -> None:
    ended = gpu("--rehearse", "--part", "device", "cells", "fused", "--output", str(tmp_path), "--seconds", "0.1")
    assert ended.returncode == 1
    assert "cells: not started" in ended.stdout
    assert "fused: not started" in ended.stdout
    assert not (tmp_path / "fused.json").exists()


def test_every_check_is_also_a_test_on_a_gpu() -> None:
    from benchmarks.gpu_checks import CHECKS
    from benchmarks.gpu_speed import MEASUREMENTS

    assert list(TESTED_PARTS) == list(CHECKS)
    assert set(PARTS) == {*CHECKS, *MEASUREMENTS}


def test_results_before_a_kill_are_kept(tmp_path: Path) -> None:
    from benchmarks.gpu import run_part
    from benchmarks.gpu_setup import Bench

    def part(bench: Bench) -> None:
        bench.check("a first one", True)
        document = json.loads((tmp_path / "half.json").read_text())
        assert document["error"] == "it was killed"
        assert [row["name"] for row in document["checks"]] == ["a first one"]
        raise ValueError("broken\nand more")

    assert run_part("half", part, tmp_path, rehearse=True)["error"] == "ValueError: broken"
    document = json.loads((tmp_path / "half.json").read_text())
    assert document["error"] == "ValueError: broken"
    assert len(document["checks"]) == 1


def test_only_the_warnings_of_synchronizations_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch
    from benchmarks.gpu_setup import Bench
    from benchmarks.gpu_trials import Synchronizations

    def set_mode(mode: str) -> None:
        if mode == "warn":
            warnings.warn("Synchronization debug mode … does not yet detect all synchronizing operations", stacklevel=2)

    monkeypatch.setattr(torch.cuda, "set_sync_debug_mode", set_mode)
    counted = Synchronizations(Bench(rehearse=True))
    counted.is_active = True
    with counted:
        for _ in range(2):
            warnings.warn("called a synchronizing CUDA operation", stacklevel=1)
    assert len(counted.places) == 2


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
