"""Event loop of the fork server: it forks a child for each job, writes its log, and reports its end.

Requests and events are lines of JSON on a socket. The loop has one thread, because a fork copies locks but not the
threads that would release them. When the socket closes, the children are killed.
"""

from __future__ import annotations

import faulthandler
import json
import os
import selectors
import signal
import socket
import sys
import tempfile
import threading
import traceback
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NoReturn, final

from paribus.errors import EXIT_BUG
from paribus.models.parent_process import die_with_parent
from paribus.runner.outcomes import EXIT_RETRY
from paribus.runner.progress import JobLog
from paribus.runner.signals import STOP_SIGNALS, StopRequest, catch_signals
from paribus.runner.worker import exit_on_signal

RunJob = Callable[[str, StopRequest], int]
"""Runs a request and returns an exit code; stops when the `StopRequest` is requested."""

READ_BYTES: Final = 1 << 16
MAX_READS: Final = 64  # of the output that a child left when it ended


def fork_job(request: str, output: int, run_job: RunJob, *, setup: Callable[[], None], close: Iterable[int]) -> int:
    """Fork a child that runs a job and prints into the pipe `output`; return its process id.

    The child calls `setup` first, and closes the file descriptors `close` of its parent.
    """
    parent = os.getpid()
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)  # signals wait until the child can handle them
    try:
        pid = os.fork()
        if pid == 0:
            _run_child(request, output, run_job, parent, setup, close)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    return pid


def spawn_job(request: str, output: int, command: Sequence[str]) -> int:
    """Start a new process for a job, where a fork would be unsafe; return its process id."""
    with tempfile.TemporaryFile() as file:
        file.write(request.encode())
        file.seek(0)
        streams = ((file.fileno(), 0), (output, 1), (output, 2))
        actions = [(os.POSIX_SPAWN_DUP2, source, target) for source, target in streams]
        ignored = [number for number in STOP_SIGNALS if signal.getsignal(number) is signal.SIG_IGN]
        return os.posix_spawn(
            command[0], list(command), os.environ, file_actions=actions, setpgroup=0, setsigdef=ignored
        )


REQUESTED: Final = "as requested"  # the obstacle of a server that is not to fork


def fork_obstacle() -> str:
    """Return why a fork of this process is unsafe: its other threads; empty if there are none."""
    count = thread_count()
    if count == 1:
        return ""
    threads = [thread for thread in threading.enumerate() if thread is not threading.main_thread()]
    names = ", ".join(f"`{thread.name}`" for thread in threads)
    return f"it has {count} threads" + (f" ({names})" if names else "")


def thread_count() -> int:
    """Return the number of threads of this process; on Linux, threads that Python did not start are included."""
    with suppress(OSError):
        return sum(1 for _ in Path("/proc/self/task").iterdir())
    return threading.active_count()


def _run_child(
    request: str, output: int, run_job: RunJob, parent: int, setup: Callable[[], None], close: Iterable[int]
) -> NoReturn:
    code = EXIT_BUG
    try:
        os.setpgid(0, 0)  # a group of its own, so that its subprocesses can be killed with it
        die_with_parent(parent)
        setup()
        _redirect_streams(output, close)
        faulthandler.enable()
        stop = StopRequest()
        with catch_signals(stop, lambda: exit_on_signal(stop)):
            signal.pthread_sigmask(signal.SIG_UNBLOCK, STOP_SIGNALS)
            code = run_job(request, stop)
    except BaseException:
        with suppress(Exception):
            traceback.print_exc()
    finally:
        with suppress(Exception):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)  # without the exit handlers of the parent


def _redirect_streams(output: int, close: Iterable[int]) -> None:
    null = os.open(os.devnull, os.O_RDONLY)
    for source, target in ((null, 0), (output, 1), (output, 2)):
        os.dup2(source, target)
    for descriptor in (null, output, *close):
        with suppress(OSError):
            os.close(descriptor)
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(line_buffering=True)  # type: ignore[union-attr]  # the fork server opened them as text


@final
@dataclass
class _Child:
    name: str
    pid: int
    output: int  # read end of the pipe that it prints into
    log: JobLog
    is_open: bool = True  # whether its output is still open


@final
class ForkServerLoop:
    """Starts a child for each request, writes what it prints into its log, and reaps it."""

    def __init__(
        self,
        requests: socket.socket,
        run_job: RunJob,
        command: Sequence[str],
        *,
        setup: Callable[[], None] = lambda: None,
        obstacle: Callable[[], str] = fork_obstacle,
    ) -> None:
        """`command` starts a new process for a request on its standard input, if `obstacle` returns a reason."""
        self._requests = requests
        self._run_job = run_job
        self._command = command
        self._setup = setup
        self._obstacle = obstacle
        self._last_obstacle = ""
        self._children: dict[int, _Child] = {}
        self._unread = b""
        self._is_open = True
        self._wake_read, self._wake_write = socket.socketpair()
        self._selector = selectors.DefaultSelector()
        self._selector.register(requests, selectors.EVENT_READ, self._read_requests)
        self._selector.register(self._wake_read, selectors.EVENT_READ, self._clear_wakeup)

    def run(self) -> None:
        """Serve requests until the socket closes."""
        for end in (self._wake_read, self._wake_write):
            end.setblocking(False)
        signal.signal(signal.SIGCHLD, lambda number, frame: None)  # only with a handler is the wake-up file written
        signal.set_wakeup_fd(self._wake_write.fileno(), warn_on_full_buffer=False)
        while self._is_open:
            for key, _ in self._selector.select():
                key.data()
            self._reap()
        for pid in self._children:
            _send_signal(pid, signal.SIGKILL)
            os.waitpid(pid, 0)

    def send(self, **message: Any) -> None:
        """Send one line to the launcher."""
        with suppress(OSError):  # the launcher has ended; the next read returns that
            self._requests.sendall(json.dumps(message).encode() + b"\n")

    # -- requests ------------------------------------------------------------------------------------------------

    def _read_requests(self) -> None:
        data = b""
        with suppress(ConnectionError):
            data = self._requests.recv(READ_BYTES)
        if not data:
            self._is_open = False
            return
        *lines, self._unread = (self._unread + data).split(b"\n")
        for line in lines:
            message = json.loads(line)
            if message["do"] == "start":
                self._start(message["name"], message["request"], Path(message["log"]))
            else:
                self._stop(message["name"], message["signal"])

    def _clear_wakeup(self) -> None:
        with suppress(BlockingIOError):
            self._wake_read.recv(READ_BYTES)

    def _stop(self, name: str, number: int) -> None:
        for child in self._children.values():
            if child.name == name:
                # A request to stop is for the trial only: its last steps need its data workers.
                _send_signal(child.pid, number, to_group=number == signal.SIGKILL)

    # -- children ------------------------------------------------------------------------------------------------

    def _start(self, name: str, request: str, log: Path) -> None:
        output, child_output = os.pipe()
        try:
            pid = self._start_process(request, child_output)
        except OSError as error:  # no memory, or too many processes
            os.close(output)
            reason = f"cannot start a process: {error}"
            self.send(kind="ended", name=name, code=EXIT_RETRY, signal=None, last_line=reason)
            return
        finally:
            os.close(child_output)
        with suppress(OSError):  # the child does this as well; one of both is first
            os.setpgid(pid, pid)
        os.set_blocking(output, False)
        child = self._children[pid] = _Child(name, pid, output, JobLog(log))
        self._selector.register(output, selectors.EVENT_READ, lambda: self._read_output(child))
        self.send(kind="started", name=name, pid=pid)

    def _start_process(self, request: str, output: int) -> int:
        obstacle = self._obstacle()
        if obstacle not in ("", REQUESTED, self._last_obstacle):
            self.send(kind="note", text=f"each trial starts a new Python process, which takes seconds: {obstacle}")
            self._last_obstacle = obstacle
        if obstacle:
            return spawn_job(request, output, self._command)
        descriptors = [key.fd for key in self._selector.get_map().values()]
        return fork_job(request, output, self._run_job, setup=self._setup_child, close=descriptors)

    def _setup_child(self) -> None:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        self._setup()

    def _read_output(self, child: _Child) -> bool:
        """Write what a child printed into its log; return False if there is no more for now."""
        try:
            data = os.read(child.output, READ_BYTES)
        except BlockingIOError:
            return False
        if not data:  # it closed its output, or ended
            self._selector.unregister(child.output)
            child.is_open = False
            return False
        child.log.write(data)
        return True

    def _reap(self) -> None:
        """Report children that have ended, and kill the processes that they left behind."""
        for child in list(self._children.values()):
            pid, status = os.waitpid(child.pid, os.WNOHANG)
            if not pid:
                continue
            _send_signal(pid, signal.SIGKILL)  # data workers and other subprocesses
            del self._children[pid]
            self._close_output(child)
            code = os.waitstatus_to_exitcode(status)
            end = {"code": code, "signal": None} if code >= 0 else {"code": None, "signal": -code}
            self.send(kind="ended", name=child.name, last_line=child.log.last_line, **end)

    def _close_output(self, child: _Child) -> None:
        """Write the rest of a child's output; the rest is limited, as an escaped subprocess may print on."""
        reads = 0
        while child.is_open and reads < MAX_READS and self._read_output(child):
            reads += 1
        if child.is_open:
            self._selector.unregister(child.output)
        os.close(child.output)
        child.log.close()


def _send_signal(pid: int, number: int, *, to_group: bool = True) -> None:
    """Send a signal to a child, and to its subprocesses if `to_group`; do nothing if it has ended."""
    with suppress(ProcessLookupError, PermissionError):
        (os.killpg if to_group else os.kill)(pid, number)
