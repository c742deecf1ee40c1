"""Main program of the fork server: imports what trials need, checks that it can be forked, and serves jobs.

`ForkServer` runs it as `python -m paribus.runner.fork_server_main DESCRIPTOR SETTINGS`, with one thread.
"""

from __future__ import annotations

import gc
import json
import locale
import os
import signal
import socket
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

from paribus.errors import EXIT_OK, ParibusError
from paribus.models.parent_process import die_with_parent
from paribus.runner.fork_server_loop import REQUESTED, ForkServerLoop, RunJob, fork_obstacle
from paribus.runner.other_environment import other_import_clock
from paribus.runner.signals import STOP_SIGNALS, StopRequest
from paribus.runner.worker import WorkerRequest, pin_threads, run_request
from paribus.slots.launcher import Job

if TYPE_CHECKING:
    from paribus.registry import Registry


class ProcessState(NamedTuple):
    """Process-wide state that the import of a plugin may change: it is saved before and restored afterwards."""

    folder: str | None
    locale: str
    mask: int  # for new files
    handlers: Mapping[signal.Signals, Any]

    @classmethod
    def current(cls) -> ProcessState:
        folder = None
        with suppress(OSError):  # it was removed
            folder = os.getcwd()  # noqa: PTH109  # Path.cwd() is the same
        mask = os.umask(0o077)
        os.umask(mask)
        numbers = set(signal.Signals) - {signal.SIGKILL, signal.SIGSTOP}
        handlers = {number: handler for number in numbers if (handler := signal.getsignal(number)) is not None}
        return cls(folder, locale.setlocale(locale.LC_ALL), mask, handlers)

    def restore(self) -> None:
        if self.folder is not None:
            with suppress(OSError):
                os.chdir(self.folder)
        with suppress(locale.Error):
            locale.setlocale(locale.LC_ALL, self.locale)
        os.umask(self.mask)
        for number, handler in self.handlers.items():
            if signal.getsignal(number) is not handler:
                signal.signal(number, handler)


def main() -> None:
    """Load the plugins and serve jobs until the socket closes."""
    descriptor, text = sys.argv[1:]
    settings: dict[str, Any] = json.loads(text)
    registry: list[Registry] = []

    def load() -> None:
        if settings["fork"]:
            registry.append(_load_registry(settings["plugins"]))

    def run_job(request: str, stop: StopRequest) -> int:
        return run_request(WorkerRequest.from_json(request), registry[0], stop=stop)

    obstacle = _plugin_obstacle if settings["fork"] else lambda: REQUESTED
    serve(int(descriptor), run_job, load=load, obstacle=obstacle)


def serve(
    descriptor: int, run_job: RunJob, *, load: Callable[[], None], obstacle: Callable[[], str] = fork_obstacle
) -> NoReturn:
    """Load what jobs need, then start jobs on request of the socket with this file descriptor."""
    requests = socket.socket(fileno=descriptor)
    requests.set_inheritable(False)
    die_with_parent(os.getppid())
    state = ProcessState.current()
    _ignore_stop_signals()
    loop = ForkServerLoop(requests, run_job, Job("", "", "").command, setup=state.restore, obstacle=obstacle)
    try:
        load()
    except ParibusError as error:
        loop.send(kind="refused", problems=[asdict(problem) for problem in error.problems])
        os._exit(error.exit_code)
    state.restore()
    _ignore_stop_signals()
    gc.collect()
    gc.freeze()  # children do not write to the memory that they share with this process
    loop.send(kind="ready")
    loop.run()
    os._exit(EXIT_OK)  # without waiting for threads of plugins


def _ignore_stop_signals() -> None:
    """Ignore signals that reach the whole process group: trials handle them, and the socket ends the server."""
    for number in STOP_SIGNALS:
        signal.signal(number, signal.SIG_IGN)


def _load_registry(plugins: dict[str, Any]) -> Registry:
    pin_threads()
    import paribus.inference.generate  # imported here so that children need not
    import paribus.train.trial  # noqa: F401  # torch, Lightning, torchmetrics
    from paribus.registry import installed

    with other_import_clock():
        registry = installed(**plugins)
    pin_threads()
    return registry


def _plugin_obstacle() -> str:
    import torch

    if torch.cuda.is_initialized():
        return "a plugin used CUDA while it was imported, and a forked process cannot use CUDA then"
    obstacle = fork_obstacle()
    return f"importing a plugin made it unsafe to fork the process: {obstacle}" if obstacle else ""


if __name__ == "__main__":
    main()
