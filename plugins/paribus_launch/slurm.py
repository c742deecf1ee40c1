"""Slurm launcher (`slurm`): jobs of a Slurm cluster, submitted by submitit."""

from __future__ import annotations

import re
import signal as signals
import subprocess
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final, Literal, final

from paribus import Job, JobEnded, JobEnvironment, JobStarted, Launcher, LauncherEvent, LauncherMessage, Plugins, Range
from paribus_launch._optional_import import import_extra
from paribus_launch._submitit_job import REQUEUED, TERMINATED, SubmititJob, read_state

JOBS_FOLDER: Final = ".slurm"
SCHEDULER_SECONDS: Final = 30.0  # seconds between queries of the scheduler; state files are read more often
POLL_SECONDS: Final = 0.5
END_SECONDS: Final = 10.0  # seconds in which a cancelled process ends
FILE_SECONDS: Final = 30.0  # seconds until a file is visible on this machine
ENDED_STATES: Final = (
    "BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "FINISHED", "INTERRUPTED", "NODE_FAIL",
    "NO PROCESS AND NO RESULT", "NOT_FOUND", "OUT_OF_MEMORY", "TIMEOUT",
)  # fmt: skip


@final
@dataclass
class _Submission:
    folder: Path  # with the job's state file
    job: Any  # submitit's job
    started: bool = False
    ended_since: float | None = None  # when the scheduler first reported the end


@final
class Slurm(Launcher):
    """Slurm launcher, one job for each trial, submitted by submitit.

    Trials that start together are one array. A preempted trial, or one at its time limit, writes its checkpoint and is
    requeued. The store must be in a folder shared by all machines, because jobs exchange files beside it.
    """

    is_remote = True
    changes_environment = True

    def __init__(
        self,
        *,
        partition: Annotated[str, "partition to submit to; empty: the cluster's default"] = "",
        cpus: Annotated[int, "cores of a trial", Range(1)] = 1,
        gpus: Annotated[int, "accelerators of a trial", Range(0)] = 0,
        gres: Annotated[str, "accelerators in Slurm's syntax: gpu:a100:1"] = "",
        memory: Annotated[float, "GB of memory of a trial", Range(above=0)] = 8.0,
        minutes: Annotated[int, "time limit after which a trial is requeued and resumes", Range(1)] = 240,
        parallel: Annotated[int, "concurrent jobs of one array", Range(1)] = 256,
        additional_parameters: Annotated[list[str], "further parameters of sbatch: [account=physics, qos=high]"] = [],  # noqa: B006  # never written to
        executor: Annotated[
            Literal["slurm", "local"], "local: submitit's local executor, to try it on one machine"
        ] = "slurm",
    ) -> None:
        self._executor = executor
        self._parallel = parallel
        self._gpus = gpus
        shared = {"name": "paribus", "timeout_min": minutes, "cpus_per_task": cpus, "mem_gb": memory}
        slurm_parameters = {
            "slurm_partition": partition,
            "slurm_gres": gres,
            "slurm_array_parallelism": parallel,
            "slurm_additional_parameters": dict(parameter.partition("=")[::2] for parameter in additional_parameters),
        }
        self._parameters = {**shared, "gpus_per_node": gpus, **slurm_parameters}
        self._submitit: Any = None
        self._home = JobEnvironment({}, "")
        self._pending: dict[str, Job] = {}
        self._jobs: dict[str, _Submission] = {}
        self._events: list[LauncherEvent] = []
        self._ending: list[Any] = []  # submitit's local jobs whose processes, children of this one, may still run
        self._last_query = 0.0
        self._count = 0

    def default_jobs(self, cores: int, gpus: int) -> int:
        return self._parallel if self._executor == "slurm" else cores

    def open(self, plugins: Plugins) -> None:
        self._submitit = import_extra("submitit", launcher="slurm")
        self._home = JobEnvironment.current()

    def start(self, job: Job) -> None:
        self._pending[job.name] = job  # submitted together with following jobs, as one array

    def poll(self, seconds: float) -> Sequence[LauncherEvent]:
        self._submit()
        deadline = time.monotonic() + seconds
        while not (events := self._poll()) and time.monotonic() < deadline:
            time.sleep(max(0.0, min(POLL_SECONDS, deadline - time.monotonic())))
        return events

    def stop(self, name: str, signal: int) -> None:
        if self._pending.pop(name, None) is not None:
            self._events.append(JobEnded(name, None, int(signal)))
            return
        submission = self._jobs.get(name)
        if submission is None:
            return
        (submission.folder / "stop").write_text(str(int(signal)), encoding="utf-8")
        if signal == signals.SIGKILL or not submission.started:
            submission.job.cancel()
            self._remove(name)
            self._events.append(JobEnded(name, None, int(signal)))

    def close(self) -> None:
        for name, submission in list(self._jobs.items()):
            (submission.folder / "stop").write_text(str(int(signals.SIGKILL)), encoding="utf-8")
            submission.job.cancel()
            self._remove(name)
        deadline = time.monotonic() + END_SECONDS
        while any(job.get_info()["jobState"] == "RUNNING" for job in self._ending) and time.monotonic() < deadline:
            time.sleep(0.05)
        for collection in (self._pending, self._events, self._ending):
            collection.clear()

    def _remove(self, name: str) -> None:
        submission = self._jobs.pop(name)
        if self._executor == "local":
            self._ending.append(submission.job)

    # -- submission ----------------------------------------------------------------------------------------------

    def _submit(self) -> None:
        """Submit pending jobs, one array for each jobs folder."""
        folders: dict[Path, list[Job]] = {}
        for job in self._pending.values():
            folders.setdefault(Path(job.log).parents[1] / JOBS_FOLDER, []).append(job)
        self._pending = {}
        for folder, jobs in folders.items():
            job_runners = [SubmititJob(job, self._home, str(self._job_folder(folder, job))) for job in jobs]
            try:
                executor = self._executor_for(folder)
                with executor.batch():
                    submitit_jobs = [executor.submit(job_runner) for job_runner in job_runners]
            except Exception as error:
                self._submission_failed(jobs, error)
                continue
            for job, job_runner, submitit_job in zip(jobs, job_runners, submitit_jobs, strict=True):
                self._jobs[job.name] = _Submission(Path(job_runner.folder), submitit_job)

    def _executor_for(self, folder: Path) -> Any:
        # Preempted jobs are requeued without a limit; jobs at their time limit, up to this number of times.
        executor = self._submitit.AutoExecutor(folder, cluster=self._executor, slurm_max_num_timeout=1000)
        parameters = {key: value for key, value in self._parameters.items() if value not in ("", {}, 0)}
        executor.update_parameters(**parameters)
        return executor

    def _job_folder(self, folder: Path, job: Job) -> Path:
        """Create the folder of a job's state file, a new one for each attempt."""
        self._count += 1
        job_folder = folder / f"{job.name}-{time.time_ns():x}-{self._count}"
        job_folder.mkdir(parents=True)
        return job_folder

    def _submission_failed(self, jobs: Sequence[Job], error: Exception) -> None:
        """Report jobs that may be retried, because the scheduler may be unavailable for a moment only."""
        reason = next(iter(str(error).strip().splitlines()), type(error).__name__)
        self._events.append(LauncherMessage(f"Slurm accepted no job: {reason}"))
        self._events += [JobEnded(job.name, SUBMIT_FAILED, None, f"could not submit the job: {reason}") for job in jobs]

    # -- events --------------------------------------------------------------------------------------------------

    def _poll(self) -> list[LauncherEvent]:
        events, self._events = self._events, []
        for name, submission in list(self._jobs.items()):
            events += self._state_events(name, submission)
        local = self._executor == "local"
        if self._jobs and time.monotonic() - self._last_query > (POLL_SECONDS if local else SCHEDULER_SECONDS):
            self._last_query = time.monotonic()
            for name, submission in list(self._jobs.items()):
                events += self._scheduler_events(name, submission)
        return events

    def _state_events(self, name: str, submission: _Submission) -> Iterator[LauncherEvent]:
        """Yield events from the job's state file."""
        state = read_state(submission.folder)
        if state is None:
            return
        if not submission.started:
            submission.started = True
            yield JobStarted(name, state["location"])
        if "last" in state and state["status"] not in (REQUEUED, TERMINATED):
            self._remove(name)
            yield JobEnded(name, state["code"], state["signal"], state["last"])

    def _scheduler_events(self, name: str, submission: _Submission) -> Iterator[LauncherEvent]:
        """Yield events of a job that ended without writing its end, or that Slurm terminated and did not requeue."""
        is_first = submission is next(iter(self._jobs.values()))
        info = submission.job.get_info(mode="force" if is_first else "cache")  # one query answers for all jobs
        state = str(info.get("jobState") or info.get("State") or _controller_state(submission.job.job_id))
        if not state.startswith(ENDED_STATES):
            submission.ended_since = None
            return
        if submission.ended_since is None:
            submission.ended_since = time.monotonic()
        grace = 2 * POLL_SECONDS if self._executor == "local" else FILE_SECONDS
        if time.monotonic() - submission.ended_since > grace:
            self._remove(name)
            state_file = read_state(submission.folder)
            if state_file is not None and state_file["status"] == TERMINATED:
                yield JobEnded(name, state_file["code"], state_file["signal"], state_file["last"])
                return
            signal = signals.SIGTERM if state.startswith("CANCELLED") else signals.SIGKILL
            yield JobEnded(name, None, signal, f"Slurm reports {state} for job {submission.job.job_id}")


SUBMIT_FAILED: Final = 74  # EX_IOERR: a retry may succeed


def _controller_state(job_id: str) -> str:
    """Return the state of a job from the controller, for clusters without accounting, where `sacct` has none."""
    command = ["scontrol", "show", "job", job_id, "--oneliner"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=SCHEDULER_SECONDS)
    except (OSError, subprocess.TimeoutExpired):
        return "UNKNOWN"
    if "Invalid job id" in done.stderr:
        return "NOT_FOUND"  # the controller forgets a job some minutes after its end
    match = re.search(r"\bJobState=(\w+)", done.stdout)
    return match[1] if match else "UNKNOWN"
