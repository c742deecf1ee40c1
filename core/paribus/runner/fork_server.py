"""Fork server: starts jobs in milliseconds instead of seconds, from a process that has imported everything."""

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
CLOSE_SECONDS: Final = 10.0  # time for the fork server to end once its socket is closed
READ_BYTES: Final = 1 << 16


@final
class ForkServer:
    """Starts jobs as a `Launcher` does, by forking a process that has imported torch, Lightning and the plugins.

    That process is a new Python with one thread and without CUDA. When it or this process is killed, the jobs die.
    """

    is_remote: ClassVar[bool] = False

    def __init__(self, *, fork: bool = True, module: str = "paribus.runner.fork_server_main") -> None:
        """Without `fork`, each job is a new process. `module` is the main program of the fork server."""
        self._fork = fork
        self._module = module
        self._plugins = Plugins()
        self._process: subprocess.Popen[bytes] | None = None
        self._output: IO[bytes] | None = None
        self._socket: socket.socket | None = None
        self._unread = b""
        self._is_ready = False
        self._running: set[str] = set()

    def open(self, plugins: Plugins) -> None:
        self.close()
        self._plugins = plugins
        self._start_server()

    def start(self, job: Job) -> None:
        if self._process is None:  # it was killed, with its jobs; the next jobs get a new one
            self._start_server()
        self._running.add(job.name)
        self._send({"do": "start", **job._asdict()})

    def stop(self, name: str, signal: int) -> None:
        self._send({"do": "stop", "name": name, "signal": int(signal)})

    def poll(self, seconds: float) -> Sequence[LauncherEvent]:
        if self._socket is None:
            return []
        readable, _, _ = select.select([self._socket], [], [], max(seconds, 0.0))
        if not readable:
            return []
        data = b""
        with suppress(ConnectionError):
            data = self._socket.recv(READ_BYTES)
        if not data:
            return self._handle_death()
        *lines, self._unread = (self._unread + data).split(b"\n")
        return [event for line in lines if (event := self._event(json.loads(line))) is not None]

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()
        if self._process is not None:
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(CLOSE_SECONDS if self._is_ready else 0)  # it does not read while it imports
            self._process.kill()
            self._process.wait()
        if self._output is not None:
            self._output.close()
        self._process = self._socket = self._output = None
        self._running.clear()

    def _start_server(self) -> None:
        client, server = socket.socketpair()
        settings = json.dumps({"fork": self._fork, "plugins": plugin_arguments(self._plugins)})
        self._output = tempfile.TemporaryFile()  # noqa: SIM115  # closed by `close`
        with server:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", self._module, str(server.fileno()), settings],
                pass_fds=[server.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=self._output,
                stderr=self._output,
                env=process_environment(),
                start_new_session=True,  # Ctrl-C reaches the scheduler only, which stops the jobs
            )
        self._socket, self._unread, self._is_ready = client, b"", False

    def _send(self, message: dict[str, Any]) -> None:
        if self._socket is not None:
            with suppress(ConnectionError):  # the next `poll` reports it
                self._socket.sendall(json.dumps(message).encode() + b"\n")

    def _event(self, message: dict[str, Any]) -> LauncherEvent | None:
        match message["kind"]:
            case "started":
                return JobStarted(message["name"], f"process {message['pid']}")
            case "ended":
                self._running.discard(message["name"])
                return JobEnded(message["name"], message["code"], message["signal"], message["last_line"])
            case "note":
                return LauncherMessage(message["text"])
            case "refused":
                raise PluginError(*(Problem(**problem) for problem in message["problems"]))
        self._is_ready = True
        return None

    def _handle_death(self) -> list[LauncherEvent]:
        """Report the end of the fork server, and of its jobs, which the kernel kills with it."""
        assert self._process is not None
        code = self._process.wait()
        end = f"signal {-code} ({signal.Signals(-code).name})" if code < 0 else f"exit code {code}"
        last_line, is_ready = self._last_line(), self._is_ready
        names = sorted(self._running)
        self.close()
        if not is_ready:
            message = f"the process that loads the plugins ended with {end}" + (f": {last_line}" if last_line else "")
            raise PluginError(
                Problem(code="plugin-failed", message=message, hint="try `--no-plugins`, in case a plugin does it")
            )
        number = -code if code < 0 else signal.SIGKILL
        ends = [JobEnded(name, None, number, "its parent process ended") for name in names]
        return [LauncherMessage(f"the fork server of the trials ended with {end}; it is started again"), *ends]

    def _last_line(self) -> str:
        assert self._output is not None
        self._output.seek(0)
        lines = [line for line in self._output.read().decode(errors="replace").splitlines() if line.strip()]
        return lines[-1].strip() if lines else ""


def plugin_arguments(plugins: Plugins) -> dict[str, Any]:
    """Return the arguments of `installed` for these plugins."""
    return {"plugins": plugins.files, "only": plugins.only, "no_plugins": plugins.none}


def process_environment() -> dict[str, str]:
    """Return the environment of this process with the variables of `job_environment`."""
    return {**os.environ, **job_environment()}


def job_environment() -> dict[str, str]:
    """Return variables for a trial's process: this paribus, one thread, no random hashes, and no CUDA context."""
    root = str(Path(__file__).parents[2])
    path = os.pathsep.join([root, *(entry for entry in sys.path if entry and entry != root)])
    return {
        **dict.fromkeys(ONE_THREAD, "1"),
        "PYTHONPATH": path,
        "PYTHONHASHSEED": "0",  # the order of a set of strings may affect a plugin's results
        "TOKENIZERS_PARALLELISM": "false",
        "PYTORCH_NVML_BASED_CUDA_CHECK": "1",
    }
