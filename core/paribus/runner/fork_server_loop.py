"""The loop of the zygote: it forks a child for each job, keeps what they print, and tells how they end.

It is told what to do line by line, as JSON, through a socket, and answers in the same way. It has one thread, so that
a fork copies nothing but what stands still. When the socket closes, its children die.

How a trial's process comes into the world: forked in milliseconds, or started anew in seconds.
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
from paribus.runner.outcomes import EXIT_RETRY
from paribus.runner.signals import STOP_SIGNALS, StopRequest, catch_signals, die_with_parent
from paribus.runner.trial_output import JobLog
from paribus.runner.worker import exit_on_signal

RunJob = Callable[[str, StopRequest], int]  # an order, and whether it is to stop: an exit code


def fork_job(order: str, printed: int, work: RunJob, *, before: Callable[[], None], others: Iterable[int]) -> int:
    """A child that does the work and prints into a pipe: its process id. `others` are files that are not its own."""
    parent = os.getpid()
    held = signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)  # a wish to stop waits until the child can hear it
    try:
        pid = os.fork()
        if pid == 0:
            _live(order, printed, work, parent, before, others)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, held)
    return pid


def spawn_job(order: str, printed: int, command: Sequence[str]) -> int:
    """A process that starts from nothing, for where a fork would be unsafe: its process id."""
    with tempfile.TemporaryFile() as file:
        file.write(order.encode())
        file.seek(0)
        ends = [(os.POSIX_SPAWN_DUP2, source, to) for source, to in ((file.fileno(), 0), (printed, 1), (printed, 2))]
        asked = [each for each in STOP_SIGNALS if signal.getsignal(each) is signal.SIG_IGN]
        return os.posix_spawn(command[0], list(command), os.environ, file_actions=ends, setpgroup=0, setsigdef=asked)


def fork_obstacle() -> str:
    """What would make a fork unsafe: other threads, of which a child would have the locks and not the threads."""
    count = thread_count()
    if count == 1:
        return ""
    names = ", ".join(f"`{each.name}`" for each in threading.enumerate() if each is not threading.main_thread())
    return f"it has {count} threads" + (f" ({names})" if names else "")


def thread_count() -> int:
    """How many threads this process has, those that Python does not know of included, where the system tells."""
    with suppress(OSError):
        return sum(1 for _ in Path("/proc/self/task").iterdir())
    return threading.active_count()


def _live(
    order: str, printed: int, work: RunJob, parent: int, before: Callable[[], None], others: Iterable[int]
) -> NoReturn:
    code = EXIT_BUG
    try:
        os.setpgid(0, 0)  # so that what it starts can be ended with it
        die_with_parent(parent)
        before()
        _files(printed, others)
        faulthandler.enable()
        stop = StopRequest()
        with catch_signals(stop, lambda: exit_on_signal(stop)):
            signal.pthread_sigmask(signal.SIG_UNBLOCK, STOP_SIGNALS)
            code = work(order, stop)
    except BaseException:
        with suppress(Exception):
            traceback.print_exc()
    finally:
        with suppress(Exception):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)  # what the parent wants done at its own exit is not the child's to do


def _files(printed: int, others: Iterable[int]) -> None:
    nothing = os.open(os.devnull, os.O_RDONLY)
    for source, to in ((nothing, 0), (printed, 1), (printed, 2)):
        os.dup2(source, to)
    for each in (nothing, printed, *others):
        with suppress(OSError):
            os.close(each)
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(line_buffering=True)  # type: ignore[union-attr]  # the zygote opened them as text


READ_BYTES: Final = 1 << 16
MOST_READS: Final = 64  # after a child's end


@final
@dataclass
class _Child:
    name: str
    pid: int
    output: int  # where what it prints is read
    log: JobLog
    listening: bool = True


@final
class ForkServerLoop:
    """The children, from their birth to their burial."""

    def __init__(
        self,
        orders: socket.socket,
        work: RunJob,
        command: Sequence[str],
        *,
        before: Callable[[], None] = lambda: None,
        refuse: Callable[[], str] = fork_obstacle,
    ) -> None:
        """`command` starts a process for an order on its standard input, for when `refuse` says why not to fork."""
        self._orders = orders
        self._work = work
        self._command = command
        self._before = before
        self._refuse = refuse
        self._refused = ""
        self._children: dict[int, _Child] = {}
        self._unread = b""
        self._open = True
        self._woken, self._waker = socket.socketpair()
        self._selector = selectors.DefaultSelector()
        self._selector.register(orders, selectors.EVENT_READ, self._hear)
        self._selector.register(self._woken, selectors.EVENT_READ, self._wake)

    def run(self) -> None:
        """Until the socket closes."""
        for each in (self._woken, self._waker):
            each.setblocking(False)
        signal.signal(signal.SIGCHLD, lambda number, frame: None)  # with a handler, the wake-up file is written to
        signal.set_wakeup_fd(self._waker.fileno(), warn_on_full_buffer=False)
        while self._open:
            for key, _ in self._selector.select():
                key.data()
            self._bury()
        for pid in self._children:
            _signal(pid, signal.SIGKILL)
            os.waitpid(pid, 0)

    def tell(self, **message: Any) -> None:
        """One line to whoever gives the orders."""
        with suppress(OSError):  # nobody is left to hear it; the next read says so
            self._orders.sendall(json.dumps(message).encode() + b"\n")

    # -- what comes in -------------------------------------------------------------------------------------------

    def _hear(self) -> None:
        data = b""
        with suppress(ConnectionError):
            data = self._orders.recv(READ_BYTES)
        if not data:
            self._open = False
            return
        *lines, self._unread = (self._unread + data).split(b"\n")
        for line in lines:
            order = json.loads(line)
            if order["do"] == "start":
                self._bear(order["name"], order["request"], Path(order["log"]))
            else:
                self._stop(order["name"], order["signal"])

    def _wake(self) -> None:
        with suppress(BlockingIOError):
            self._woken.recv(READ_BYTES)

    def _stop(self, name: str, number: int) -> None:
        for child in self._children.values():
            if child.name == name:
                # Asked to stop is the trial itself, and not the data workers that its last steps need.
                _signal(child.pid, number, alone=number != signal.SIGKILL)

    # -- birth and burial ----------------------------------------------------------------------------------------

    def _bear(self, name: str, order: str, path: Path) -> None:
        output, printed = os.pipe()
        try:
            pid = self._born(order, printed)
        except OSError as error:  # no memory for it, or too many processes
            os.close(output)
            self.tell(
                kind="ended", name=name, code=EXIT_RETRY, signal=None, last=f"no process could be started: {error}"
            )
            return
        finally:
            os.close(printed)
        with suppress(OSError):  # the child does it as well: whoever is first
            os.setpgid(pid, pid)
        os.set_blocking(output, False)
        child = self._children[pid] = _Child(name, pid, output, JobLog(path))
        self._selector.register(output, selectors.EVENT_READ, lambda: self._listen(child))
        self.tell(kind="started", name=name, pid=pid)

    def _born(self, order: str, printed: int) -> int:
        why = self._refuse()
        if why and why != self._refused:
            self.tell(kind="note", text=f"each trial starts a Python of its own, which takes seconds: {why}")
            self._refused = why
        if why:
            return spawn_job(order, printed, self._command)
        return fork_job(order, printed, self._work, before=self._leave, others=[key.fd for key in self._files()])

    def _hear_out(self, child: _Child) -> None:
        """Keeps what still stands in the pipe, which is bounded, even if somebody escaped who prints on."""
        reads = 0
        while child.listening and reads < MOST_READS and self._listen(child):
            reads += 1
        if child.listening:
            self._selector.unregister(child.output)
        os.close(child.output)
        child.log.close()

    def _files(self) -> list[selectors.SelectorKey]:
        return list(self._selector.get_map().values())

    def _leave(self) -> None:
        """What a child does first."""
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        self._before()

    def _listen(self, child: _Child) -> bool:
        """Keeps what was printed; False where there is no more for now."""
        try:
            data = os.read(child.output, READ_BYTES)
        except BlockingIOError:
            return False
        if not data:  # it has closed its output, or ended
            self._selector.unregister(child.output)
            child.listening = False
            return False
        child.log.write(data)
        return True

    def _bury(self) -> None:
        for child in list(self._children.values()):
            pid, status = os.waitpid(child.pid, os.WNOHANG)
            if not pid:
                continue
            _signal(pid, signal.SIGKILL)  # its data workers, and whatever else it left behind
            del self._children[pid]
            self._hear_out(child)
            code = os.waitstatus_to_exitcode(status)
            how = {"code": code, "signal": None} if code >= 0 else {"code": None, "signal": -code}
            self.tell(kind="ended", name=child.name, last=child.log.last_line, **how)


def _signal(pid: int, number: int, *, alone: bool = False) -> None:
    """Sends a signal to a child, and to what it started unless `alone`; what has ended does not mind."""
    with suppress(ProcessLookupError, PermissionError):
        (os.kill if alone else os.killpg)(pid, number)
