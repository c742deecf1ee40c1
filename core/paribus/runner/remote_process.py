"""A job's process on another machine: what a launcher runs there, beside its own scheduler's doings."""

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
POLL_SECONDS: Final = 0.1  # seconds between looks at whether the process lives


class JobEnvironment(NamedTuple):
    """What a job finds around it, as it is where the study runs: machines share these folders."""

    environment: Mapping[str, str]
    folder: str

    @classmethod
    def current(cls) -> JobEnvironment:
        cache = str(cache_folder().absolute())
        return cls({**job_environment(), "PARIBUS_CACHE_DIR": cache}, os.getcwd())  # noqa: PTH109  # Path.cwd() is the same


@final
class JobProcess:
    """The process of a job, for a launcher whose jobs run elsewhere: there it starts it, and waits.

    It dies with the thread that started it. What it prints goes into the job's log.
    """

    def __init__(self, job: Job, home: JobEnvironment) -> None:
        self.name = job.name
        self._log = JobLog(Path(job.log))
        folder = home.folder if Path(home.folder).is_dir() else None
        with tempfile.TemporaryFile() as order:
            order.write(job.request.encode())
            order.seek(0)
            self._process = subprocess.Popen(
                [*job.command, str(os.getpid())],  # with which it is to die, however early that is
                stdin=order,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                cwd=folder,
                env={**os.environ, **home.environment},
                process_group=0,  # what a scheduler sends to a whole group, the trial would hear twice
            )
        assert self._process.stdout is not None
        self._output = self._process.stdout.fileno()
        os.set_blocking(self._output, False)
        self._ended: JobEnded | None = None

    @property
    def location(self) -> str:
        return f"process {self._process.pid} on {os.uname().nodename}"

    def send(self, number: int) -> None:
        """A signal to the trial; SIGKILL to what it started as well."""
        if self._ended is None:
            with suppress(ProcessLookupError, PermissionError):
                (os.killpg if number == signal.SIGKILL else os.kill)(self._process.pid, number)

    def wait(self, seconds: float) -> JobEnded | None:
        """How it ended, or None if it has not within that time. A signal's handler may call it meanwhile."""
        until = time.monotonic() + seconds
        while self._ended is None:
            select.select([self._output], [], [], max(0.0, min(POLL_SECONDS, until - time.monotonic())))
            closed = not self._listen()
            if closed and self._ended is None:
                time.sleep(POLL_SECONDS / 10)  # it closed its output, and has something left to do
            if self._ended is None and self._process.poll() is not None:
                self._bury()
            elif time.monotonic() >= until:
                break
        return self._ended

    def _listen(self) -> bool:
        """Keeps what was printed; False where there will be no more."""
        try:
            while data := os.read(self._output, READ_BYTES):
                self._log.write(data)
        except BlockingIOError:
            return True
        return False

    def _bury(self) -> None:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)  # data workers, and whatever else it left behind
        self._listen()
        code = self._process.returncode
        self._log.close()
        self._ended = JobEnded(self.name, code if code >= 0 else None, -code if code < 0 else None, self._log.last_line)
        if self._process.stdout is not None:
            self._process.stdout.close()
