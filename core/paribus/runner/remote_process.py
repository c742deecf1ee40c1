"""Process of a job on another machine, started by a launcher through a cluster's scheduler."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import tempfile
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple, final

from paribus.runner.fork_server import job_environment
from paribus.runner.trial_output import JobLog
from paribus.slots.launcher import Job, JobEnded
from paribus.storage.atomic import cache_folder

READ_BYTES: Final = 1 << 16
POLL_SECONDS: Final = 0.1  # between checks whether the process has ended


class JobEnvironment(NamedTuple):
    """Environment and working folder of the study, for its jobs: all machines share these folders."""

    environment: Mapping[str, str]
    folder: str

    @classmethod
    def current(cls) -> JobEnvironment:
        cache = str(cache_folder().absolute())
        return cls({**job_environment(), "PARIBUS_CACHE_DIR": cache}, os.getcwd())  # noqa: PTH109  # Path.cwd() is the same


@final
class JobProcess:
    """Process of a job, for launchers of remote jobs; it dies with the thread that started it.

    Its output goes into the job's log.
    """

    def __init__(self, job: Job, home: JobEnvironment) -> None:
        self.name = job.name
        self._log = JobLog(Path(job.log))
        folder = home.folder if Path(home.folder).is_dir() else None
        with tempfile.TemporaryFile() as request:
            request.write(job.request.encode())
            request.seek(0)
            self._process = subprocess.Popen(
                [*job.command, str(os.getpid())],  # the process to die with
                stdin=request,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                cwd=folder,
                env={**os.environ, **home.environment},
                process_group=0,  # a scheduler's signal to a process group must not reach the trial twice
            )
        assert self._process.stdout is not None
        self._output = self._process.stdout.fileno()
        os.set_blocking(self._output, False)
        self._ended: JobEnded | None = None

    @property
    def location(self) -> str:
        return f"process {self._process.pid} on {os.uname().nodename}"

    def send(self, number: int) -> None:
        """Send a signal to the trial; SIGKILL to its subprocesses as well."""
        if self._ended is None:
            with suppress(ProcessLookupError, PermissionError):
                (os.killpg if number == signal.SIGKILL else os.kill)(self._process.pid, number)

    def wait(self, seconds: float) -> JobEnded | None:
        """Return the end of the process, or None after that time; signal handlers may call it meanwhile."""
        end = time.monotonic() + seconds
        while self._ended is None:
            select.select([self._output], [], [], max(0.0, min(POLL_SECONDS, end - time.monotonic())))
            is_closed = not self._read_output()
            if is_closed and self._ended is None:
                time.sleep(POLL_SECONDS / 10)  # it closed its output, but has not ended
            if self._ended is None and self._process.poll() is not None:
                self._reap()
            elif time.monotonic() >= end:
                break
        return self._ended

    def _read_output(self) -> bool:
        """Write output to the log; return False at its end."""
        try:
            while data := os.read(self._output, READ_BYTES):
                self._log.write(data)
        except BlockingIOError:
            return True
        return False

    def _reap(self) -> None:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)  # data workers and other subprocesses
        self._read_output()
        code = self._process.returncode
        self._log.close()
        self._ended = JobEnded(self.name, code if code >= 0 else None, -code if code < 0 else None, self._log.last_line)
        if self._process.stdout is not None:
            self._process.stdout.close()
