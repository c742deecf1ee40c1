"""The launcher's end of a zygote: processes in milliseconds instead of seconds, each with everything imported."""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, Any, ClassVar, Final, final

from paribus.errors import PluginError, Problem
from paribus.slots.launcher import Job, JobEnded, JobStarted, LauncherEvent, LauncherMessage, Plugins

ONE_THREAD: Final = (
    "OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS", "VECLIB_MAXIMUM_THREADS",
)  # fmt: skip
CLOSE_SECONDS: Final = 10.0  # seconds for a zygote to end once its socket is closed
READ_BYTES: Final = 1 << 16


@final
class ForkServer:
    """Starts jobs as a `Launcher` does, by forking them from a process that has imported torch, Lightning and plugins.

    That process is a Python of its own, with one thread and without CUDA; when it or this one is killed, the jobs die.
    """

    is_remote: ClassVar[bool] = False  # all that it starts runs on this machine

    def __init__(self, *, fork: bool = True, module: str = "paribus.runner.fork_server_main") -> None:
        """Without `fork`, each job imports everything itself. `module` is what runs as the zygote."""
        self._fork = fork
        self._module = module
        self._plugins = Plugins()
        self._process: subprocess.Popen[bytes] | None = None
        self._said: IO[bytes] | None = None
        self._line: socket.socket | None = None
        self._unread = b""
        self._ready = False
        self._running: set[str] = set()

    def open(self, plugins: Plugins) -> None:
        self.close()
        self._plugins = plugins
        self._begin()

    def start(self, job: Job) -> None:
        if self._process is None:  # it was killed: its jobs are lost, the next ones are not
            self._begin()
        self._running.add(job.name)
        self._tell({"do": "start", **job._asdict()})

    def stop(self, name: str, signal: int) -> None:
        self._tell({"do": "stop", "name": name, "signal": int(signal)})

    def poll(self, seconds: float) -> Sequence[LauncherEvent]:
        if self._line is None:
            return []
        readable, _, _ = select.select([self._line], [], [], max(seconds, 0.0))
        if not readable:
            return []
        data = b""
        with suppress(ConnectionError):
            data = self._line.recv(READ_BYTES)
        if not data:
            return self._died()
        *lines, self._unread = (self._unread + data).split(b"\n")
        return [news for line in lines if (news := self._news(json.loads(line))) is not None]

    def close(self) -> None:
        if self._line is not None:
            self._line.close()
        if self._process is not None:
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(CLOSE_SECONDS if self._ready else 0)  # while it imports, it does not listen
            self._process.kill()
            self._process.wait()
        if self._said is not None:
            self._said.close()
        self._process = self._line = self._said = None
        self._running.clear()

    def _begin(self) -> None:
        ours, theirs = socket.socketpair()
        setting = json.dumps({"fork": self._fork, "plugins": plugin_arguments(self._plugins)})
        self._said = tempfile.TemporaryFile()  # noqa: SIM115  # closed by `close`
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", self._module, str(theirs.fileno()), setting],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=self._said,
                stderr=self._said,
                env=process_environment(),
                start_new_session=True,  # Ctrl-C reaches the supervisor, which knows what to do about it
            )
        self._line, self._unread, self._ready = ours, b"", False

    def _tell(self, message: dict[str, Any]) -> None:
        if self._line is not None:
            with suppress(ConnectionError):  # the next news says so
                self._line.sendall(json.dumps(message).encode() + b"\n")

    def _news(self, told: dict[str, Any]) -> LauncherEvent | None:
        match told["kind"]:
            case "started":
                return JobStarted(told["name"], f"process {told['pid']}")
            case "ended":
                self._running.discard(told["name"])
                return JobEnded(told["name"], told["code"], told["signal"], told["last"])
            case "note":
                return LauncherMessage(told["text"])
            case "refused":
                raise PluginError(*(Problem(**problem) for problem in told["problems"]))
        self._ready = True
        return None

    def _died(self) -> list[LauncherEvent]:
        """The zygote has ended, and by the kernel's hand its children with it."""
        assert self._process is not None
        code = self._process.wait()
        how = f"signal {-code} ({signal.Signals(-code).name})" if code < 0 else f"exit code {code}"
        last, ready = self._last(), self._ready
        lost = sorted(self._running)
        self.close()
        if not ready:
            what = f"the process that loads the plugins ended with {how}" + (f": {last}" if last else "")
            raise PluginError(
                Problem(code="plugin-failed", message=what, valid="--no-plugins, to see whether it is one")
            )
        ended = [
            JobEnded(name, None, -code if code < 0 else signal.SIGKILL, "its parent process ended") for name in lost
        ]
        return [
            LauncherMessage(f"the process from which trials are forked ended with {how}; it is started anew"),
            *ended,
        ]

    def _last(self) -> str:
        assert self._said is not None
        self._said.seek(0)
        lines = [line for line in self._said.read().decode(errors="replace").splitlines() if line.strip()]
        return lines[-1].strip() if lines else ""


def plugin_arguments(plugins: Plugins) -> dict[str, Any]:
    """What `installed` is to be called with."""
    return {"plugins": plugins.files, "only": plugins.only, "no_plugins": plugins.none}


def process_environment() -> dict[str, str]:
    """That of this process, with what a trial's process needs."""
    return {**os.environ, **job_environment()}


def job_environment() -> dict[str, str]:
    """This paribus, one thread, no luck, and a look at CUDA that does not touch it."""
    here = str(Path(__file__).parents[2])
    path = os.pathsep.join([here, *(entry for entry in sys.path if entry and entry != here)])
    return {
        **dict.fromkeys(ONE_THREAD, "1"),
        "PYTHONPATH": path,
        "PYTHONHASHSEED": "0",  # the order of a set of strings may reach a plugin's results
        "TOKENIZERS_PARALLELISM": "false",
        "PYTORCH_NVML_BASED_CUDA_CHECK": "1",
    }
