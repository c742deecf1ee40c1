"""Local launcher, and registration of all launchers."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from paribus.runner.worker import WorkerRequest
from paribus.slots.launcher import Job, JobEnded, JobStarted, LauncherEvent, Plugins
from paribus_launch import launcher
from paribus_launch.local import Local
from paribus_launch.ray import Ray
from paribus_launch.slurm import Slurm


def wait_for_end(local: Local, seconds: float = 60.0) -> list[LauncherEvent]:
    events: list[LauncherEvent] = []
    deadline = time.monotonic() + seconds
    while not any(isinstance(event, JobEnded) for event in events):
        assert time.monotonic() < deadline, events
        events += local.poll(0.1)
    return events


@pytest.fixture
def job(tmp_path: Path) -> Callable[..., Job]:
    request = WorkerRequest(store=str(tmp_path), study="study", identity="nowhere", spec={})
    return lambda name="job": Job(name, request.to_json(), str(tmp_path / f"{name}.txt"))


def test_launchers_are_registered() -> None:
    assert launcher() == {"local": Local, "ray": Ray, "slurm": Slurm}


@pytest.mark.slow
def test_without_fork_each_job_is_a_new_python_process(job: Callable[..., Job], tmp_path: Path) -> None:
    local = Local(fork=False)
    local.open(Plugins())
    try:
        local.start(job())
        events = wait_for_end(local)
        assert any(isinstance(event, JobStarted) and event.location.startswith("process ") for event in events)
        end = events[-1]
        assert isinstance(end, JobEnded)
        assert end.code == 5  # the trial has no folder
        assert "nowhere" in end.last_line
        assert end.last_line in (tmp_path / "job.txt").read_text()
    finally:
        local.close()


@pytest.mark.thorough
def test_a_job_can_be_stopped_and_a_launcher_reopened(job: Callable[..., Job]) -> None:
    local = Local(fork=False)
    for _ in range(2):
        local.open(Plugins())
        local.start(job())
        local.stop("job", signal.SIGKILL)
        end = wait_for_end(local)[-1]
        assert isinstance(end, JobEnded)
        assert (end.code, end.signal) == (None, signal.SIGKILL)
        local.close()
    assert list(local.poll(0.0)) == []


def test_per_gpu_limits_concurrent_trials_else_the_cores() -> None:
    assert Local().default_jobs(cores=16, gpus=2) == 2
    assert Local(per_gpu=3).default_jobs(cores=16, gpus=2) == 6
    assert Local(per_gpu=3).default_jobs(cores=16, gpus=0) == 16


def test_clusters_accept_more_jobs_than_local_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    assert Slurm(parallel=40).default_jobs(cores=2, gpus=0) == 40
    assert Ray().default_jobs(cores=2, gpus=0) == 2
    assert Ray(address="auto").default_jobs(cores=2, gpus=0) > 100
