"""Trials that run at once are dealt out over the devices, one each."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import torch

from paribus.runner import worker
from paribus.runner.jobs import trials_at_once
from paribus.runner.worker import CUDA_DEVICES, devices_at, devices_per_trial, gpu_count, select_device


def test_every_device_gets_its_share() -> None:
    devices = ["0", "1", "GPU-abc"]
    assert [devices_at(slot, devices) for slot in range(6)] == [["0"], ["1"], ["GPU-abc"]] * 2


@pytest.mark.parametrize("devices", [[], ["0"]])
def test_one_device_or_none_leaves_no_choice(devices: list[str]) -> None:
    assert devices_at(1, devices) == []


def test_trials_on_several_devices_share_none() -> None:
    assert [devices_at(slot, "01234", 2) for slot in range(3)] == ["01", "23", "01"]
    assert devices_at(0, "01234", 6) == []


@pytest.mark.parametrize(
    ("devices", "count"), [(1, 1), ("auto", 1), (2, 2), ("3", 3), (-1, 8), ("-1", 8), ([0, 3], 8), ("0,3", 8)]
)
def test_a_trial_takes_the_devices_that_it_requests(devices: Any, count: int) -> None:
    assert devices_per_trial({"devices": devices}, 8) == count


@pytest.mark.parametrize(
    ("trainers", "devices", "jobs"),
    [
        ([{}], 8, 8),
        ([{"devices": 2}], 8, 4),
        ([{}, {"devices": 3}], 8, 2),
        ([{"devices": -1}], 8, 1),
        ([{"devices": 4}], 2, 1),
        ([{"devices": 4}], 0, 0),
        ([], 3, 3),
    ],
)
def test_only_as_many_trials_run_at_once_as_have_devices(
    trainers: list[dict[str, Any]], devices: int, jobs: int
) -> None:
    assert trials_at_once(trainers, devices) == jobs


def test_a_trial_sees_one_of_the_devices_of_its_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(CUDA_DEVICES, "4,7")

    select_device(3, {})
    assert os.environ[CUDA_DEVICES] == "7"


def test_devices_are_counted_if_none_are_named(monkeypatch: pytest.MonkeyPatch) -> None:

    monkeypatch.delenv(CUDA_DEVICES, raising=False)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 3)
    select_device(4, {"devices": "auto"})
    assert os.environ.pop(CUDA_DEVICES) == "1"


def test_a_trial_over_several_devices_sees_them_all(monkeypatch: pytest.MonkeyPatch) -> None:

    monkeypatch.setenv(CUDA_DEVICES, "0,1")
    select_device(1, {"devices": 2})
    assert os.environ[CUDA_DEVICES] == "0,1"


def test_a_trial_over_several_devices_sees_those_of_its_slot(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(CUDA_DEVICES, "0,1,4,5")
    select_device(1, {"devices": 2})
    assert os.environ[CUDA_DEVICES] == "4,5"


@pytest.mark.parametrize(("named", "count"), [("0,1", 2), ("", 0), ("-1", 0), ("GPU-abc", 1)])
def test_named_devices_are_counted(named: str, count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(CUDA_DEVICES, named)
    assert gpu_count() == count


def test_without_names_the_driver_lists_the_devices(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv(CUDA_DEVICES, raising=False)
    monkeypatch.setattr(worker, "NVIDIA", tmp_path / "none")
    monkeypatch.setattr(worker, "DEVICE_FILES", tmp_path / "none")
    monkeypatch.setenv("PATH", "")
    worker._listed_gpus.cache_clear()
    assert gpu_count() == 0
    monkeypatch.setattr(worker, "NVIDIA", tmp_path)
    for bus in ("0000:01:00.0", "0000:02:00.0"):
        (tmp_path / bus).mkdir()
    assert gpu_count() == 2


def test_without_the_driver_in_proc_the_device_files_are_counted(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv(CUDA_DEVICES, raising=False)
    monkeypatch.setattr(worker, "NVIDIA", tmp_path / "none")
    monkeypatch.setattr(worker, "DEVICE_FILES", tmp_path)
    for name in ("nvidia0", "nvidia1", "nvidia10", "nvidiactl", "nvidia-uvm", "nvidia-caps"):
        (tmp_path / name).touch()
    assert gpu_count() == 3


@pytest.mark.parametrize(("script", "count"), [("echo 'GPU 0: H100'; echo 'GPU 1: H100'", 2), ("exit 9", 0)])
def test_without_either_the_tool_of_the_driver_is_asked(
    script: str, count: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv(CUDA_DEVICES, raising=False)
    monkeypatch.setattr(worker, "NVIDIA", tmp_path / "none")
    monkeypatch.setattr(worker, "DEVICE_FILES", tmp_path / "none")
    (tmp_path / "nvidia-smi").write_text(f"#!/bin/sh\n{script}\n")
    (tmp_path / "nvidia-smi").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    worker._listed_gpus.cache_clear()
    assert gpu_count() == count
    worker._listed_gpus.cache_clear()
