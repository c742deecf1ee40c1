"""A trial on several devices: a process for each, all of which do the same with a share of each step's rows.

Each holds the whole model and data, so that a step's loss is one sum over one count, whoever summed which rows. The
first of them is the trial's own process: it alone writes, is told to stop, and leaves the record.
"""

from __future__ import annotations

import gc
import os
import signal
import socket
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any, Final, NamedTuple, TypeVar

import torch
from lightning.pytorch.strategies import ModelParallelStrategy
from torch import Tensor

from paribus.errors import Problem, SpecError
from paribus.specs.trainer_options import IN_PIECES, counted, sharded, uncut
from paribus.train.worker_pool import may_fork

Record = TypeVar("Record")

POLL_SECONDS: Final = 0.05
EXIT_TIMEOUT_SECONDS: Final = 30.0  # seconds for the others to end once the first has


class ProcessRank(NamedTuple):
    """Which of a trial's processes this is, and what they must agree on."""

    rank: int = 0
    of: int = 1  # processes in all

    @property
    def first(self) -> bool:
        return self.rank == 0

    def summed(self, share: Tensor) -> Tensor:
        """The loss of a step, of which each process has a share."""
        if self.of == 1:
            return share
        total = share.clone()
        torch.distributed.all_reduce(total)
        return total

    def agreed(self, asked: bool, device: torch.device) -> bool:
        """Whether any of them was asked to stop: then all do, at the same step."""
        if self.of == 1:
            return asked
        flag = torch.tensor(float(asked), device=device)
        torch.distributed.all_reduce(flag)
        return bool(flag > 0)


def process_count(trainer: Mapping[str, Any]) -> int:
    """How many processes a trainer asks for, on this machine."""
    count = counted(trainer)
    if count is not None:
        return count
    return max(1, torch.cuda.device_count()) if trainer.get("accelerator", "auto") != "cpu" else 1


def validate_devices(trainer: Mapping[str, Any]) -> None:
    """What a trial cannot be cut into."""
    for key, what, valid in uncut(trainer):
        raise _refused(key, what, valid)


def lightning_strategy(trainer: Mapping[str, Any], count: int) -> Any:
    """Lightning's strategy. Its own `fsdp` takes CUDA; the one of torch's newer `fully_shard` runs on any device."""
    strategy = trainer.get("strategy", "auto")
    return ModelParallelStrategy(count, 1) if strategy == IN_PIECES else strategy


def run_distributed(trainer: Mapping[str, Any], run: Callable[[ProcessRank], Record]) -> Record:
    """Runs it in as many processes as the trainer wants, of which this is the first, and returns what comes of it."""
    count = process_count(trainer)
    if count == 1 and not sharded(trainer):
        return run(ProcessRank())
    validate_devices(trainer)
    if not may_fork():
        what = f"{count} devices take a process each, and this one has threads, which a copy would not have"
        raise _refused("devices", what, "1, or a study: its trials have processes of their own")
    with _environment(count):
        others = {_forked(ProcessRank(rank, count), run): rank for rank in range(1, count)}
        try:
            found = run(ProcessRank(0, count))
        except BaseException as error:
            _lost(_ended(others, 1.0), error)
            raise
        _ended(others, EXIT_TIMEOUT_SECONDS)
        return found


def _forked(ranks: ProcessRank, run: Callable[[ProcessRank], Any]) -> int:
    pid = os.fork()
    if pid:
        return pid
    code = 1
    gc.freeze()  # a process group of a trial before this one would wait, as it ends, for threads that no copy has
    try:
        for each in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1):
            signal.signal(each, signal.SIG_IGN)  # the first process is asked, and tells at which step all stop
        os.environ["LOCAL_RANK"] = str(ranks.rank)
        run(ranks)
        code = 0
    except Exception as error:
        if type(error).__name__ in ("DivergedError", "InterruptedTrialError"):
            code = 0
        else:
            print(f"process {ranks.rank} of {ranks.of}:", file=sys.stderr)  # noqa: T201  # the log is where this is read
            traceback.print_exc()
    finally:
        with suppress(Exception):
            sys.stderr.flush()
        os._exit(code)


def _ended(others: Mapping[int, int], seconds: float) -> dict[int, int]:
    """How the others ended, by rank: exit codes, and signals below 0; whoever has not by then is killed."""
    codes: dict[int, int] = {}
    until = time.monotonic() + seconds
    left = dict(others)
    while left:
        for pid, rank in list(left.items()):
            found, status = os.waitpid(pid, os.WNOHANG)
            if found:
                codes[rank] = os.waitstatus_to_exitcode(status)
                del left[pid]
        if left and time.monotonic() > until:
            for pid in left:
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
            break
        time.sleep(POLL_SECONDS if left else 0)
    return codes


def _lost(codes: Mapping[int, int], error: BaseException) -> None:
    """Where another process failed first, the error of this one only says that it is gone."""
    failed = {rank: code for rank, code in codes.items() if code}
    if not failed or not isinstance(error, Exception):
        return
    rank, code = next(iter(failed.items()))
    if code < 0:  # killed: so is the trial, which is then tried again
        os.kill(os.getpid(), -code)
    raise RuntimeError(f"process {rank} of the trial's failed first, see the log; here: {error}") from error


@contextmanager
def _environment(count: int) -> Iterator[None]:
    """What Lightning reads: that its processes are there already, and where they meet."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    meeting = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "LOCAL_RANK": "0", "WORLD_SIZE": str(count)}
    before = {name: os.environ.get(name) for name in (*meeting, "NODE_RANK")}
    os.environ.update({**meeting, "NODE_RANK": "0"})
    try:
        yield
    finally:
        if torch.distributed.is_initialized():
            torch.distributed.destroy_process_group()
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def _refused(key: str, what: str, valid: str) -> SpecError:
    return SpecError(Problem(code="trainer-refused", path=f"trainer.{key}", message=what, valid=valid))
