"""On a Slurm cluster."""

from __future__ import annotations

import signal as signals
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final, Literal, final

from paribus import Job, JobEnded, JobEnvironment, JobStarted, Launcher, LauncherEvent, LauncherMessage, Plugins, Range
from paribus_launch._library import library
from paribus_launch._submitted import REQUEUED, Submitted, read

ORDERS: Final = ".slurm"
ASK: Final = 30.0  # seconds between two questions to the scheduler; what our files tell is known sooner
LOOK: Final = 0.5
LATE: Final = 30.0  # seconds that a file may need to be seen on this machine
OVER: Final = (
    "BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "FINISHED", "INTERRUPTED", "NODE_FAIL",
    "NO PROCESS AND NO RESULT", "OUT_OF_MEMORY", "TIMEOUT",
)  # fmt: skip


@final
@dataclass
class _Submission:
    folder: Path  # where it says how it is
    job: Any  # submitit's; None: not submitted as yet
    began: bool = False
    over: float | None = None  # when the scheduler first said so


@final
class Slurm(Launcher):
    """Each trial as a job of a Slurm cluster, submitted by submitit, those that start together as one array.

    A trial that is preempted, or whose time runs out, writes its checkpoint, is queued again and goes on. The store
    must lie in a folder that all machines share: orders, and how jobs are, are files beside it.
    """

    elsewhere = True

    def __init__(
        self,
        *,
        partition: Annotated[str, "where to submit; empty: the cluster's default"] = "",
        cpus: Annotated[int, "cores of a trial", Range(1)] = 1,
        gpus: Annotated[int, "accelerators of a trial", Range(0)] = 0,
        gres: Annotated[str, "or as Slurm spells it: gpu:a100:1"] = "",
        memory: Annotated[float, "GB of a trial", Range(above=0)] = 8.0,
        minutes: Annotated[int, "after which a trial is queued again, and goes on", Range(1)] = 240,
        parallel: Annotated[int, "jobs of one array that run at once", Range(1)] = 256,
        more: Annotated[list[str], "what else sbatch is told: [account=physics, qos=high]"] = [],  # noqa: B006  # never written to
        executor: Annotated[
            Literal["slurm", "local"], "local: submitit's stand-in, to try it on one machine"
        ] = "slurm",
    ) -> None:
        self._executor = executor
        self._parallel = parallel
        self._gpus = gpus
        shared = {"name": "paribus", "timeout_min": minutes, "cpus_per_task": cpus, "mem_gb": memory}
        own = {
            "slurm_partition": partition,
            "slurm_gres": gres,
            "slurm_array_parallelism": parallel,
            "slurm_additional_parameters": dict(each.partition("=")[::2] for each in more),
        }
        self._parameters = {**shared, "gpus_per_node": gpus, **own}
        self._submitit: Any = None
        self._home = JobEnvironment({}, "")
        self._new: dict[str, Job] = {}
        self._jobs: dict[str, _Submission] = {}
        self._news: list[LauncherEvent] = []
        self._asked = 0.0
        self._count = 0

    def at_once(self, cores: int, gpus: int) -> int:
        return self._parallel if self._executor == "slurm" else cores

    def open(self, plugins: Plugins) -> None:
        self._submitit = library("submitit", launcher="slurm")
        self._home = JobEnvironment.here()

    def start(self, job: Job) -> None:
        self._new[job.name] = job  # submitted with those that follow, as one array

    def news(self, seconds: float) -> Sequence[LauncherEvent]:
        self._submit()
        until = time.monotonic() + seconds
        while not (told := self._known()) and time.monotonic() < until:
            time.sleep(max(0.0, min(LOOK, until - time.monotonic())))
        return told

    def stop(self, name: str, signal: int) -> None:
        if self._new.pop(name, None) is not None:
            self._news.append(JobEnded(name, None, int(signal)))
            return
        submission = self._jobs.get(name)
        if submission is None:
            return
        (submission.folder / "stop").write_text(str(int(signal)))
        if signal == signals.SIGKILL or not submission.began:
            submission.job.cancel()
            del self._jobs[name]
            self._news.append(JobEnded(name, None, int(signal)))

    def close(self) -> None:
        for submission in self._jobs.values():
            (submission.folder / "stop").write_text(str(int(signals.SIGKILL)))
            submission.job.cancel()
        for each in (self._new, self._jobs, self._news):
            each.clear()

    # -- to the scheduler ----------------------------------------------------------------------------------------

    def _submit(self) -> None:
        """What was started since the last time: one array for each folder of orders."""
        folders: dict[Path, list[Job]] = {}
        for job in self._new.values():
            folders.setdefault(Path(job.log).parents[1] / ORDERS, []).append(job)
        self._new = {}
        for folder, jobs in folders.items():
            bodies = [Submitted(job, self._home, str(self._desk(folder, job))) for job in jobs]
            try:
                executor = self._made(folder)
                with executor.batch():
                    submitted = [executor.submit(body) for body in bodies]
            except Exception as error:
                self._refused(jobs, error)
                continue
            for job, body, its in zip(jobs, bodies, submitted, strict=True):
                self._jobs[job.name] = _Submission(Path(body.folder), its)

    def _made(self, folder: Path) -> Any:
        # Preempted jobs are queued again without a limit; those that outlast their minutes, so often.
        executor = self._submitit.AutoExecutor(folder, cluster=self._executor, slurm_max_num_timeout=1000)
        given = {key: value for key, value in self._parameters.items() if value not in ("", {}, 0)}
        executor.update_parameters(**given)
        return executor

    def _desk(self, folder: Path, job: Job) -> Path:
        """Where a job says how it is: another place for another try."""
        self._count += 1
        desk = folder / f"{job.name}-{time.time_ns():x}-{self._count}"
        desk.mkdir(parents=True)
        return desk

    def _refused(self, jobs: Sequence[Job], error: Exception) -> None:
        """The scheduler may be away for a moment: these jobs may be tried again, as after a failing disk."""
        why = next(iter(str(error).strip().splitlines()), type(error).__name__)
        self._news.append(LauncherMessage(f"Slurm took no job: {why}"))
        self._news += [JobEnded(job.name, AGAIN, None, f"no job could be submitted: {why}") for job in jobs]

    # -- from the jobs -------------------------------------------------------------------------------------------

    def _known(self) -> list[LauncherEvent]:
        told, self._news = self._news, []
        for name, submission in list(self._jobs.items()):
            told += self._told(name, submission)
        local = self._executor == "local"
        if self._jobs and time.monotonic() - self._asked > (LOOK if local else ASK):
            self._asked = time.monotonic()
            for name, submission in list(self._jobs.items()):
                told += self._lost(name, submission)
        return told

    def _told(self, name: str, submission: _Submission) -> Iterator[LauncherEvent]:
        """What the job's own file says."""
        state = read(submission.folder)
        if state is None:
            return
        if not submission.began:
            submission.began = True
            yield JobStarted(name, state["where"])
        if "last" in state and state["how"] != REQUEUED:
            del self._jobs[name]
            yield JobEnded(name, state["code"], state["signal"], state["last"])

    def _lost(self, name: str, submission: _Submission) -> Iterator[LauncherEvent]:
        """What the scheduler says of a job that could not say it itself."""
        first = submission is next(iter(self._jobs.values()))
        info = submission.job.get_info(mode="force" if first else "cache")  # one question tells of all
        state = str(info.get("jobState") or info.get("State") or "UNKNOWN")
        if not state.startswith(OVER):
            submission.over = None
            return
        if submission.over is None:
            submission.over = time.monotonic()
        late = 2 * LOOK if self._executor == "local" else LATE
        if time.monotonic() - submission.over > late:
            del self._jobs[name]
            by = signals.SIGTERM if state.startswith("CANCELLED") else signals.SIGKILL
            yield JobEnded(name, None, by, f"of its job, {submission.job.job_id}, Slurm says {state}")


AGAIN: Final = 74  # EX_TEMPFAIL's neighbour, EX_IOERR: another try may end differently
