"""Slurm launcher: submission, events, and the job itself."""

from __future__ import annotations

import importlib
import json
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.fixtures.problems import raises_problem

from paribus import SpecError
from paribus.slots.launcher import Job, JobEnded, JobStarted, LauncherEvent, LauncherMessage, Plugins
from paribus_launch import _submitit_job
from paribus_launch._submitit_job import SubmititJob
from paribus_launch.slurm import Slurm

slurm = importlib.import_module("paribus_launch.slurm")  # the package attribute of that name is the class
TERM, KILL = signal.SIGTERM, signal.SIGKILL


class SubmititJobStub:  # submitit's `Job`
    def __init__(self, body: SubmititJob) -> None:
        self.body = body
        self.job_id = "7_0"
        self.state = "PENDING"
        self.cancelled = False

    def cancel(self) -> None:
        self.cancelled = True

    def get_info(self, mode: str) -> dict[str, str]:
        return {"State": self.state}

    def write_state(self, status: str, **more: Any) -> None:
        text = json.dumps({"status": status, "location": "process 7 on node", **more})
        (Path(self.body.folder) / "state.json").write_text(text)


class Cluster:
    """A fake of submitit's cluster."""

    def __init__(self) -> None:
        self.parameters: dict[str, Any] = {}
        self.arrays: list[list[SubmititJobStub]] = []
        self.down = False

    def AutoExecutor(self, folder: Path, **setting: Any) -> Cluster:  # noqa: N802  # submitit's name
        if self.down:
            raise RuntimeError("sbatch: error: Unable to contact slurm controller")
        return self

    def update_parameters(self, **parameters: Any) -> None:
        self.parameters = parameters

    @contextmanager
    def batch(self) -> Iterator[None]:
        self.arrays.append([])
        yield

    def submit(self, body: SubmititJob) -> SubmititJobStub:
        self.arrays[-1].append(SubmititJobStub(body))
        return self.arrays[-1][-1]


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Cluster:
    fake = Cluster()
    monkeypatch.setattr(slurm, "import_extra", lambda name, launcher: fake)
    for name in ("SCHEDULER_SECONDS", "FILE_SECONDS", "POLL_SECONDS"):
        monkeypatch.setattr(slurm, name, 0.0)
    return fake


def open_launcher(**options: Any) -> Slurm:
    launcher = Slurm(**options)
    launcher.open(Plugins())
    return launcher


def job(folder: Path, name: str) -> Job:
    return Job(name, "{}", str(folder / "study" / name / "log.txt"))


def poll(launcher: Slurm) -> list[LauncherEvent]:
    return [event for _ in range(3) for event in launcher.poll(0.0)]


def test_jobs_that_start_together_are_one_array(cluster: Cluster, tmp_path: Path) -> None:
    launcher = open_launcher(
        partition="long", gpus=1, memory=3.5, minutes=90, parallel=2, additional_parameters=["account=physics", "nice"]
    )
    for name in ("a", "b", "c"):
        launcher.start(job(tmp_path, name))
    assert poll(launcher) == []
    assert [[submitted.body.job.name for submitted in array] for array in cluster.arrays] == [["a", "b", "c"]]
    assert cluster.parameters == {
        "name": "paribus",
        "timeout_min": 90,
        "cpus_per_task": 1,
        "mem_gb": 3.5,
        "gpus_per_node": 1,
        "slurm_partition": "long",
        "slurm_array_parallelism": 2,
        "slurm_additional_parameters": {"account": "physics", "nice": ""},
    }
    launcher.start(job(tmp_path, "d"))
    launcher.poll(0.0)
    assert len(cluster.arrays) == 2
    assert {Path(submitted.body.folder).parent for array in cluster.arrays for submitted in array} == {
        tmp_path / "study/.slurm"
    }


def test_a_state_file_gives_start_and_end_events(cluster: Cluster, tmp_path: Path) -> None:
    launcher = open_launcher()
    launcher.start(job(tmp_path, "a"))
    assert poll(launcher) == []
    (submitted,) = cluster.arrays[0]
    submitted.write_state("running")
    assert poll(launcher) == [JobStarted("a", "process 7 on node")]
    submitted.write_state("ended", code=5, signal=None, last="error")
    assert poll(launcher) == [JobEnded("a", 5, None, "error")]
    assert poll(launcher) == []


def test_a_preempted_job_has_no_end_event(cluster: Cluster, tmp_path: Path) -> None:
    launcher = open_launcher()
    launcher.start(job(tmp_path, "a"))
    launcher.poll(0.0)
    (submitted,) = cluster.arrays[0]
    submitted.write_state("requeued", code=143, signal=None, last="asked to stop")
    submitted.state = "REQUEUED"
    assert poll(launcher) == [JobStarted("a", "process 7 on node")]
    submitted.write_state("ended", code=0, signal=None, last="")
    assert poll(launcher) == [JobEnded("a", 0, None, "")]


@pytest.mark.parametrize(
    ("state", "number"), [("NODE_FAIL", KILL), ("OUT_OF_MEMORY", KILL), ("CANCELLED by 1000", TERM)]
)
def test_the_scheduler_reports_jobs_without_a_state_file(
    cluster: Cluster, tmp_path: Path, state: str, number: signal.Signals
) -> None:
    launcher = open_launcher()
    launcher.start(job(tmp_path, "a"))
    launcher.poll(0.0)
    cluster.arrays[0][0].state = state
    time.sleep(0.001)
    assert poll(launcher) == [JobEnded("a", None, number, f"Slurm reports {state} for job 7_0")]


def test_pending_jobs_are_cancelled_and_running_ones_get_a_signal(cluster: Cluster, tmp_path: Path) -> None:
    launcher = open_launcher()
    launcher.start(job(tmp_path, "new"))
    launcher.stop("new", TERM)
    assert poll(launcher) == [JobEnded("new", None, TERM)]
    assert cluster.arrays == []
    for name in ("waits", "runs", "killed"):
        launcher.start(job(tmp_path, name))
    launcher.poll(0.0)
    waits, runs, killed = cluster.arrays[0]
    runs.write_state("running")
    killed.write_state("running")
    poll(launcher)
    launcher.stop("waits", TERM)
    launcher.stop("runs", TERM)
    launcher.stop("killed", KILL)
    launcher.stop("nobody", TERM)
    assert poll(launcher) == [JobEnded("waits", None, TERM), JobEnded("killed", None, KILL)]
    assert (waits.cancelled, runs.cancelled, killed.cancelled) == (True, False, True)
    assert (Path(runs.body.folder) / "stop").read_text() == "15"
    launcher.close()
    assert runs.cancelled


def test_jobs_may_be_retried_if_submission_fails(cluster: Cluster, tmp_path: Path) -> None:
    launcher = open_launcher()
    cluster.down = True
    launcher.start(job(tmp_path, "a"))
    reason = "sbatch: error: Unable to contact slurm controller"
    assert poll(launcher) == [
        LauncherMessage(f"Slurm accepted no job: {reason}"),
        JobEnded("a", 74, None, f"could not submit the job: {reason}"),
    ]


def test_a_missing_library_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "submitit", None)
    with raises_problem(SpecError, "not-installed", "submitit", "paribus[slurm]"):
        Slurm().open(Plugins())


# --- the job itself ---


class Process:
    """A fake trial process that ends on a signal."""

    location = "process 1 on node"

    def __init__(self, job: Job, home: object) -> None:
        self.signals: list[int] = []
        self.result: JobEnded | None = None

    def send(self, number: int) -> None:
        self.signals.append(number)
        self.result = JobEnded("a", 143, None, "asked to stop")

    def wait(self, seconds: float) -> JobEnded | None:
        return self.result


def state(folder: Path) -> dict[str, Any]:
    saved = _submitit_job.read_state(folder)
    assert saved is not None
    return saved


def test_a_stop_file_stops_a_job(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(_submitit_job, "JobProcess", Process)
    (tmp_path / "stop").write_text("15")
    body = SubmititJob(job(tmp_path, "a"), Any, str(tmp_path))  # type: ignore[arg-type]  # its process is not started
    handlers = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGUSR1)}
    try:
        body()
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
    assert state(tmp_path) == {
        "status": "ended",
        "location": Process.location,
        "code": 143,
        "signal": None,
        "last": "asked to stop",
    }


@pytest.mark.parametrize(("code", "status"), [(143, "requeued"), (0, "ended")])
def test_the_trial_writes_a_checkpoint_before_it_is_requeued(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, code: int, status: str
) -> None:
    delayed = SimpleNamespace(helpers=SimpleNamespace(DelayedSubmission=lambda body: body))
    monkeypatch.setitem(sys.modules, "submitit", delayed)
    body = SubmititJob(job(tmp_path, "a"), Any, str(tmp_path))  # type: ignore[arg-type]  # its process is not started
    process = body._process = Process(body.job, None)  # type: ignore[assignment]  # one that a test ends
    monkeypatch.setattr(process, "send", lambda number: setattr(process, "result", JobEnded("a", code, None, "")))
    requeued = body.checkpoint()
    assert (requeued is not None) == (status == "requeued")
    assert state(tmp_path)["status"] == status


def test_options_are_passed_to_sbatch(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    pytest.importorskip("submitit", reason="submitit is not installed: pip install 'paribus[slurm]'")
    for name, says in (("srun", ""), ("sbatch", "Submitted batch job 77"), ("sacct", ""), ("scancel", "")):
        path = tmp_path / "bin" / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(f"#!/bin/sh\necho '{says}'\n")
        path.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/usr/bin:/bin")
    launcher = open_launcher(
        partition="long", gres="gpu:a100:1", cpus=3, minutes=90, parallel=2, additional_parameters=["account=physics"]
    )
    for name in ("a", "b", "c"):
        launcher.start(job(tmp_path, name))
    assert poll(launcher) == []
    assert {submission.job.job_id for submission in launcher._jobs.values()} == {"77_0", "77_1", "77_2"}
    script = next((tmp_path / "study" / ".slurm").glob("*.sh"))
    lines = {line.removeprefix("#SBATCH ") for line in script.read_text().splitlines()}
    expected = {
        "--array=0-2%2", "--partition=long", "--gres=gpu:a100:1", "--cpus-per-task=3", "--mem=8GB", "--time=90",
        "--account=physics", "--job-name=paribus",
    }  # fmt: skip
    assert expected - lines == set()
    launcher.close()
