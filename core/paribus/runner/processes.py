"""Processes of jobs, for launchers: the fork server of this machine, and a process on another machine.

The fork server starts jobs in milliseconds instead of seconds, from a process that has imported everything.
"""

from __future__ import annotations

import json
import math
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, Any, ClassVar, Final, NamedTuple, final

from paribus.errors import EXIT_FAILED, PluginError, Problem
from paribus.program.run_program import USER_ENVIRONMENT
from paribus.runner.other_environment import other_environment
from paribus.runner.progress import JobLog
from paribus.slots.launcher import Job, JobEnded, JobStarted, LauncherEvent, LauncherMessage, Plugins
from paribus.storage.atomic import cache_folder

POLL_SECONDS: Final = 0.1  # between checks whether the process has ended
ONE_THREAD: Final = (
    "OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS", "VECLIB_MAXIMUM_THREADS",
)  # fmt: skip
CLOSE_SECONDS: Final = 10.0  # time for the fork server to end once its socket is closed
IDLE_SECONDS: Final = 5.0  # after which a server of the other environment ends
READ_BYTES: Final = 1 << 16
OUTSIDE_SIGNALS: Final = (signal.SIGKILL, signal.SIGTERM, signal.SIGHUP)  # of the kernel or a person, not of a plugin


@final
class ForkServer:
    """Starts jobs as a `Launcher` does, by forking a process that has imported torch, Lightning and the plugins.

    That process is a new Python with one thread and without CUDA. When it or this process is killed, the jobs die.
    """

    is_remote: ClassVar[bool] = False

    changes_environment: ClassVar[bool] = True

    def __init__(self, *, fork: bool = True, module: str = "paribus.runner.fork_server_main") -> None:
        """Without `fork`, each job is a new process. `module` is the main program of the fork server."""
        self._fork = fork
        self._module = module
        self._is_other = False  # whether this is the server of `_other`
        self._other: ForkServer | None = None  # for jobs in the other environment
        self._plugins = Plugins()
        self._process: subprocess.Popen[bytes] | None = None
        self._output: IO[bytes] | None = None
        self._socket: socket.socket | None = None
        self._unread = b""
        self._is_ready = False
        self._running: set[str] = set()
        self._idle_since = math.inf
        self._failure = ""  # reason why it cannot load the plugins in the other environment

    def open(self, plugins: Plugins) -> None:
        self.close()
        self._plugins = plugins
        self._start_server()

    def start(self, job: Job) -> None:
        if job.other_environment and not self._is_other:
            self._other_server().start(job)
            return
        if self._process is None and not self._failure:  # it was killed, with its jobs; the next jobs get a new one
            self._start_server()
        self._running.add(job.name)
        self._send({"do": "start", **job._asdict()})

    def stop(self, name: str, signal: int) -> None:
        if self._other is not None:
            self._other.stop(name, signal)
        self._send({"do": "stop", "name": name, "signal": int(signal)})

    def poll(self, seconds: float) -> Sequence[LauncherEvent]:
        other = self._other
        if other is not None and other._failure and other._running:
            return other._fail_jobs(other._failure)
        sockets = {server._socket: server for server in (self, other) if server is not None and server._socket}
        readable, _, _ = select.select(list(sockets), [], [], max(seconds, 0.0)) if sockets else ([], [], [])
        events = [event for item in readable for event in sockets[item]._read_events()]
        if other is not None and not other._running and time.monotonic() - other._idle_since > IDLE_SECONDS:
            other.close()  # rehearsals come first, and it takes memory
            self._other = None
        return events

    def _read_events(self) -> Sequence[LauncherEvent]:
        """Read what the server has sent."""
        if self._socket is None:  # the other server, which was closed at the end of this one
            return []
        data = b""
        with suppress(ConnectionError):
            data = self._socket.recv(READ_BYTES)
        if not data:
            return self._handle_death()
        *lines, self._unread = (self._unread + data).split(b"\n")
        return [event for line in lines for event in self._events(json.loads(line))]

    def close(self) -> None:
        if self._other is not None:
            self._other.close()
            self._other = None
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

    def _other_server(self) -> ForkServer:
        """Return the server of jobs in the other environment; it loads the plugins while this one does."""
        if self._other is None:
            self._other = ForkServer(fork=self._fork, module=self._module)
            self._other._is_other = True
            self._other.open(self._plugins)
        return self._other

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
                env=other_environment(process_environment()) if self._is_other else process_environment(),
                start_new_session=True,  # Ctrl-C reaches the scheduler only, which stops the jobs
            )
        self._socket, self._unread, self._is_ready = client, b"", False

    def _send(self, message: dict[str, Any]) -> None:
        if self._socket is not None:
            with suppress(ConnectionError):  # the next `poll` reports it
                self._socket.sendall(json.dumps(message).encode() + b"\n")

    def _events(self, message: dict[str, Any]) -> list[LauncherEvent]:
        match message["kind"]:
            case "started":
                return [JobStarted(message["name"], f"process {message['pid']}")]
            case "ended":
                self._running.discard(message["name"])
                self._idle_since = time.monotonic()
                return [JobEnded(message["name"], message["code"], message["signal"], message["last_line"])]
            case "note":
                return [] if self._is_other else [LauncherMessage(message["text"])]
            case "refused":
                problems = [Problem(**problem) for problem in message["problems"]]
                if self._is_other:
                    return self._fail_jobs(problems[0].message)
                raise PluginError(*problems)
        self._is_ready = True
        return []

    def _fail_jobs(self, reason: str) -> list[LauncherEvent]:
        """Report the jobs of a server that could not load the plugins in the other environment."""
        names, self._failure = sorted(self._running), reason
        self.close()
        return [JobEnded(name, EXIT_FAILED, None, reason) for name in names]

    def _handle_death(self) -> list[LauncherEvent]:
        """Report the end of the fork server, and of its jobs, which the kernel kills with it."""
        assert self._process is not None
        code = self._process.wait()
        end = f"signal {-code} ({signal.Signals(-code).name})" if code < 0 else f"exit code {code}"
        last_line, is_ready = self._last_line(), self._is_ready
        names = sorted(self._running | (self._other._running if self._other is not None else set()))
        self.close()
        if self._is_other:
            return [JobEnded(name, EXIT_FAILED, None, f"its parent process ended with {end}") for name in names]
        if not is_ready and -code not in OUTSIDE_SIGNALS:
            message = f"the process that loads the plugins ended with {end}" + (f": {last_line}" if last_line else "")
            raise PluginError(
                Problem(code="plugin-failed", message=message, hint="try `--no-plugins`, in case a plugin does it")
            )
        number = -code if code < 0 else signal.SIGKILL
        ends = [JobEnded(name, None, number, "its parent process ended") for name in names]
        moment = "" if is_ready else " while it loaded the plugins"
        return [LauncherMessage(f"the fork server of the trials ended with {end}{moment}; it is started again"), *ends]

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
    if USER_ENVIRONMENT in os.environ:  # this process is a job itself
        user = os.environ[USER_ENVIRONMENT]
    else:
        user = json.dumps({name: os.environ[name] for name in (*ONE_THREAD, "PYTHONPATH") if name in os.environ})
    root = str(Path(__file__).parents[2])
    path = os.pathsep.join([root, *(entry for entry in sys.path if entry and entry != root)])
    return {
        **dict.fromkeys(ONE_THREAD, "1"),
        "PYTHONPATH": path,
        "PYTHONHASHSEED": "0",  # the order of a set of strings may affect a plugin's results
        "TOKENIZERS_PARALLELISM": "false",
        "PYTORCH_NVML_BASED_CUDA_CHECK": "1",
        USER_ENVIRONMENT: user,
    }


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
        environment = {**os.environ, **home.environment}
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
                env=other_environment(environment) if job.other_environment else environment,
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
