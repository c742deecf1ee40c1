"""The zygote's start: it imports all that trials need, looks whether that left it fit to be forked, and waits.

`Zygote` runs it as `python -m paribus.studies.preload FILE-NUMBER SETTING`, with one thread a process.
"""

from __future__ import annotations

import gc
import json
import os
import signal
import socket
import sys
from collections.abc import Callable
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, NoReturn

from paribus.errors import EXIT_OK, ParibusError
from paribus.slots.launcher import Job
from paribus.studies.births import Work, why_not_fork
from paribus.studies.nursery import Nursery
from paribus.studies.signals import ASKING, Stop, die_with
from paribus.studies.surroundings import Surroundings
from paribus.studies.work import Order, work

if TYPE_CHECKING:
    from paribus.registry import Registry


def main() -> None:
    """Becomes a zygote, and is one until its socket closes."""
    number, setting = sys.argv[1:]
    asked: dict[str, Any] = json.loads(setting)
    registry: list[Registry] = []

    def load() -> None:
        if asked["fork"]:
            registry.append(_loaded(asked["plugins"]))

    def forked(order: str, stop: Stop) -> int:
        return work(Order.from_json(order), registry[0], stop=stop)

    serve(int(number), forked, load=load, refuse=_refuse if asked["fork"] else lambda: "as was asked for")


def serve(number: int, work: Work, *, load: Callable[[], None], refuse: Callable[[], str] = why_not_fork) -> NoReturn:
    """Loads what the children need, and then bears them as it is told through the socket with this file number."""
    orders = socket.socket(fileno=number)
    orders.set_inheritable(False)
    die_with(os.getppid())
    surroundings = Surroundings.taken()
    _ignore()
    nursery = Nursery(orders, work, Job("", "", "").command, before=surroundings.restore, refuse=refuse)
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
    for each in ASKING:
        signal.signal(each, signal.SIG_IGN)


def _loaded(plugins: dict[str, Any]) -> Registry:
    import torch

    torch.set_num_threads(1)
    import paribus.decode.translating  # imported for the children: what writes, and the next
    import paribus.train.trial  # noqa: F401  # the same: torch, Lightning, torchmetrics
    from paribus.registry import installed

    registry = installed(**plugins)
    torch.set_num_threads(1)
    return registry


def _refuse() -> str:
    import torch

    if torch.cuda.is_initialized():
        return "a plugin used CUDA while it was imported, and a forked process cannot use it then"
    why = why_not_fork()
    return f"a plugin's import left the process, from which trials are forked, unfit for it: {why}" if why else ""


if __name__ == "__main__":
    main()
