"""The zygote's start: it imports all that trials need, looks whether that left it fit to be forked, and waits.

`Zygote` runs it as `python -m paribus.runner.fork_server_main FILE-NUMBER SETTING`, with one thread a process.

What a plugin could change for everybody while it is imported: taken down before, and put back afterwards.
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
from paribus.runner.fork_server_loop import ForkServerLoop, RunJob, fork_obstacle
from paribus.runner.signals import STOP_SIGNALS, StopRequest, die_with_parent
from paribus.runner.worker import WorkerRequest, run_request
from paribus.slots.launcher import Job

if TYPE_CHECKING:
    from paribus.registry import Registry


class ProcessState(NamedTuple):
    """The working folder, the locale, the mask for new files, and what signals do."""

    folder: str | None
    locale: str
    mask: int
    handlers: Mapping[signal.Signals, Any]

    @classmethod
    def taken(cls) -> ProcessState:
        folder = None
        with suppress(OSError):  # it was removed
            folder = os.getcwd()  # noqa: PTH109  # Path.cwd() is the same
        mask = os.umask(0o077)
        os.umask(mask)
        handlers = {each: held for each in _ours() if (held := signal.getsignal(each)) is not None}
        return cls(folder, locale.setlocale(locale.LC_ALL), mask, handlers)

    def restore(self) -> None:
        if self.folder is not None:
            with suppress(OSError):
                os.chdir(self.folder)
        with suppress(locale.Error):
            locale.setlocale(locale.LC_ALL, self.locale)
        os.umask(self.mask)
        for each, held in self.handlers.items():
            if signal.getsignal(each) is not held:
                signal.signal(each, held)


def _ours() -> set[signal.Signals]:
    """The signals that a process may decide about."""
    return {each for each in signal.Signals if each not in (signal.SIGKILL, signal.SIGSTOP)}


def main() -> None:
    """Becomes a zygote, and is one until its socket closes."""
    number, setting = sys.argv[1:]
    asked: dict[str, Any] = json.loads(setting)
    registry: list[Registry] = []

    def load() -> None:
        if asked["fork"]:
            registry.append(_loaded(asked["plugins"]))

    def forked(order: str, stop: StopRequest) -> int:
        return run_request(WorkerRequest.from_json(order), registry[0], stop=stop)

    serve(int(number), forked, load=load, obstacle=_refuse if asked["fork"] else lambda: "as was asked for")


def serve(
    number: int, run_job: RunJob, *, load: Callable[[], None], obstacle: Callable[[], str] = fork_obstacle
) -> NoReturn:
    """Loads what the children need, and then bears them as it is told through the socket with this file number."""
    orders = socket.socket(fileno=number)
    orders.set_inheritable(False)
    die_with_parent(os.getppid())
    surroundings = ProcessState.taken()
    _ignore()
    nursery = ForkServerLoop(orders, run_job, Job("", "", "").command, before=surroundings.restore, refuse=obstacle)
    try:
        load()
    except ParibusError as error:
        nursery.tell(kind="refused", problems=[asdict(problem) for problem in error.problems])
        os._exit(error.exit_code)
    surroundings.restore()
    _ignore()
    gc.collect()
    gc.freeze()  # what is shared with the children is not written to by their collectors
    nursery.tell(kind="ready")
    nursery.run()
    os._exit(EXIT_OK)  # without waiting for a thread that a plugin left behind


def _ignore() -> None:
    """Only the socket ends a zygote: what is sent to a whole group of processes is for the trials to hear."""
    for each in STOP_SIGNALS:
        signal.signal(each, signal.SIG_IGN)


def _loaded(plugins: dict[str, Any]) -> Registry:
    import torch

    torch.set_num_threads(1)
    import paribus.inference.translate  # imported for the children: what writes, and the next
    import paribus.train.trial  # noqa: F401  # the same: torch, Lightning, torchmetrics
    from paribus.registry import installed

    registry = installed(**plugins)
    torch.set_num_threads(1)
    return registry


def _refuse() -> str:
    import torch

    if torch.cuda.is_initialized():
        return "a plugin used CUDA while it was imported, and a forked process cannot use it then"
    why = fork_obstacle()
    return f"a plugin's import left the process, from which trials are forked, unfit for it: {why}" if why else ""


if __name__ == "__main__":
    main()
