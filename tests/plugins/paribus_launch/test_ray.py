"""Ray launcher, on a cluster started here."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.fixtures.problems import raises_problem

from paribus import SpecError
from paribus.runner.worker import WorkerRequest
from paribus.slots.launcher import Job, JobEnded, JobStarted, LauncherEvent, Plugins
from paribus_launch.ray import Ray


def test_a_missing_library_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with raises_problem(SpecError, "not-installed", "paribus[ray]"):
        Ray().open(Plugins())


def test_an_unreachable_cluster_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def init(**setting: object) -> None:
        raise ConnectionError("Failed to connect to Ray cluster")

    monkeypatch.setitem(sys.modules, "ray", SimpleNamespace(is_initialized=lambda: False, init=init))
    with raises_problem(SpecError, "unreachable", "launcher.address", "head:6379", "RAY_AUTH_TOKEN"):
        Ray(address="head:6379").open(Plugins())


@pytest.mark.parametrize(
    ("address", "variable", "joined"), [("", "", "local"), ("", "head:1", "head:1"), ("auto", "head:1", "auto")]
)
def test_an_existing_cluster_is_joined_only_on_request(
    monkeypatch: pytest.MonkeyPatch, address: str, variable: str, joined: str
) -> None:
    init_options: dict[str, Any] = {}
    ray = SimpleNamespace(
        is_initialized=lambda: False, init=lambda **setting: init_options.update(setting), shutdown=list
    )
    monkeypatch.setitem(sys.modules, "ray", ray)
    monkeypatch.setenv("RAY_ADDRESS", variable)
    launcher = Ray(address=address)
    launcher.open(Plugins())
    launcher.close()
    assert init_options["address"] == joined
    assert ("runtime_env" in init_options) == (joined != "local")  # remote workers get the path of this code


def test_reserved_resources_are_passed_to_ray() -> None:
    options = Ray(cpus=2, gpus=0.5, memory=1.5, resources=["fast-disk=2", "licence"])._options
    assert options == {
        "num_cpus": 2,
        "num_gpus": 0.5,
        "memory": 1_500_000_000,
        "resources": {"fast-disk": 2.0, "licence": 1.0},
    }


# --- with Ray ---


@pytest.fixture(scope="module")
def launcher() -> Iterator[Ray]:
    pytest.importorskip("ray", reason="ray is not installed: pip install 'paribus[ray]'")
    handler = signal.getsignal(signal.SIGTERM)
    ray_launcher = Ray(cpus=0.5)
    ray_launcher.open(Plugins())
    assert signal.getsignal(signal.SIGTERM) == handler
    yield ray_launcher
    ray_launcher.close()


@pytest.fixture
def job(tmp_path: Path) -> Job:
    """Return a job that imports for seconds and fails because its trial has no folder."""
    request = WorkerRequest(store=str(tmp_path), study="study", identity="nowhere", spec={})
    return Job("a", request.to_json(), str(tmp_path / "log.txt"))


def wait_for(launcher: Ray, kind: type[JobStarted | JobEnded]) -> LauncherEvent:
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        for event in launcher.poll(1.0):
            if isinstance(event, kind):
                return event
    raise AssertionError("nothing was heard of it")


@pytest.mark.slow
@pytest.mark.filterwarnings("default")  # Ray's own warnings
def test_each_job_has_its_own_end_event(launcher: Ray, job: Job, tmp_path: Path) -> None:
    launcher.start(job._replace(name="broken", request="no order"))
    broken = wait_for(launcher, JobEnded)
    assert isinstance(broken, JobEnded)
    assert (broken.name, broken.code) == ("broken", 1)
    assert "JSONDecodeError" in broken.last_line
    assert broken.last_line in (tmp_path / "log.txt").read_text()
    launcher.start(job._replace(name="stopped"))
    started = wait_for(launcher, JobStarted)
    assert isinstance(started, JobStarted)
    assert f"on {os.uname().nodename}" in started.location
    launcher.stop("stopped", signal.SIGKILL)
    assert wait_for(launcher, JobEnded) == JobEnded("stopped", None, signal.SIGKILL)
    launcher.stop("stopped", signal.SIGTERM)  # the job has ended
    assert launcher.poll(0.1) == []


@pytest.mark.slow
@pytest.mark.faults
@pytest.mark.filterwarnings("default")  # Ray's own warnings
@pytest.mark.parametrize("victim", ["process", "worker"])
def test_a_killed_process_or_worker_ends_one_job(launcher: Ray, job: Job, victim: str) -> None:
    launcher.start(job)
    started = wait_for(launcher, JobStarted)
    assert isinstance(started, JobStarted)
    pid = int(started.location.split()[1])
    parent = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    os.kill(pid if victim == "process" else parent, signal.SIGKILL)
    ended = wait_for(launcher, JobEnded)
    assert isinstance(ended, JobEnded)
    assert (ended.name, ended.code, ended.signal) == ("a", None, signal.SIGKILL)
    assert ("lost" in ended.last_line) == (victim == "worker")
    end = time.monotonic() + 20
    while Path(f"/proc/{pid}").exists() and Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z":
        assert time.monotonic() < end  # the trial's process dies with its worker
        time.sleep(0.05)
