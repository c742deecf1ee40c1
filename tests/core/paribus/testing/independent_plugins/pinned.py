"""Pinned launcher: each trial on cores of its own."""

from __future__ import annotations

import os
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from signal import SIGKILL
from typing import Annotated, Final, NamedTuple, final

from paribus import Job, JobEnded, JobStarted, Launcher, LauncherEvent, Plugins, Range, hookimpl

POLL_SECONDS: Final = 0.05  # between checks whether a process has ended


class Running(NamedTuple):
    """Process of a job, and the cores that it may use."""

    process: subprocess.Popen[bytes]
    log: Path
    cores: frozenset[int]


@final
class Pinned(Launcher):
    """Launcher that starts each trial as a process on this machine, which may use `cores` cores only: those that the
    fewest running trials use. Their times are then steadier.
    """

    def __init__(self, *, cores: Annotated[int, "cores of a trial", Range(1, 1024)] = 1) -> None:
        self.cores = cores
        self._running: dict[str, Running] = {}
        self._events: list[LauncherEvent] = []

    def default_jobs(self, cores: int, gpus: int) -> int:
        return max(1, cores // self.cores)

    def open(self, plugins: Plugins) -> None:
        """Do nothing: each process imports the plugins that it needs."""

    def start(self, job: Job) -> None:
        own, cores = os.sched_getaffinity(0), self._free_cores()
        with Path(job.log).open("ab") as log, tempfile.TemporaryFile() as request:
            request.write(job.request.encode())
            request.seek(0)
            os.sched_setaffinity(0, cores)  # which the process inherits
            try:
                process = subprocess.Popen(
                    job.command, stdin=request, stdout=log, stderr=subprocess.STDOUT, start_new_session=True
                )
            finally:
                os.sched_setaffinity(0, own)
        self._running[job.name] = Running(process, Path(job.log), cores)
        self._events.append(JobStarted(job.name, f"process {process.pid}, cores {','.join(map(str, sorted(cores)))}"))

    def poll(self, seconds: float) -> Sequence[LauncherEvent]:
        until = time.monotonic() + seconds
        self._collect()
        while not self._events and time.monotonic() < until:
            time.sleep(POLL_SECONDS)
            self._collect()
        events, self._events = self._events, []
        return events

    def stop(self, name: str, signal: int) -> None:
        if name in self._running:
            send(self._running[name].process, signal)

    def close(self) -> None:
        for running in self._running.values():
            send(running.process, SIGKILL)
            running.process.wait()
        self._running.clear()
        self._events.clear()

    def _free_cores(self) -> frozenset[int]:
        used = [core for running in self._running.values() for core in running.cores]
        available = sorted(os.sched_getaffinity(0), key=lambda core: (used.count(core), core))
        return frozenset(available[: self.cores])

    def _collect(self) -> None:
        """Add an event for each process that has ended."""
        for name, running in list(self._running.items()):
            code = running.process.poll()
            if code is not None:
                del self._running[name]
                lines = running.log.read_text(errors="replace").splitlines() or [""]
                number = -code if code < 0 else None
                self._events.append(JobEnded(name, None if code < 0 else code, number, lines[-1]))


def send(process: subprocess.Popen[bytes], number: int) -> None:
    """Send a signal to a process, and SIGKILL to its subprocesses as well."""
    with suppress(ProcessLookupError):  # it has ended
        if number == SIGKILL:
            os.killpg(process.pid, number)
        else:
            process.send_signal(number)


@hookimpl
def launcher() -> Mapping[str, type[Launcher]]:
    return {"pinned": Pinned}
