"""Trials on several devices: one process per device, and parameters that are sharded over the processes (FSDP).

Each process holds the model and the data, and takes a share of the rows of each step. A step's loss is one sum over
one count, so it does not depend on the number of processes. Rank 0 is the trial's own process, and alone writes.

With FSDP, attentions and feed-forwards are sharded one by one, and the remaining parameters (embeddings, norms, heads)
together. Checkpoints and digests are of full tensors, which all processes have to request together.
"""

from __future__ import annotations

import gc
import os
import signal
import socket
import sys
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any, Final, NamedTuple, TypeVar

import torch
from lightning.pytorch.strategies import ModelParallelStrategy
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard, register_fsdp_forward_method
from torch.distributed.tensor import DTensor, Replicate, distribute_tensor

from paribus.datamodule.worker_pool import RANK_MONITOR, may_fork
from paribus.errors import EXIT_FAILED, ParibusError, Problem, SpecError, join_names
from paribus.models.parent_process import die_with_parent
from paribus.parts.stack import Layer
from paribus.specs.trainer_options import IN_PIECES, requested_processes, trainer_problems, uses_sharding

Record = TypeVar("Record")

POLL_SECONDS: Final = 0.05
MONITOR_SECONDS: Final = 0.5  # between two looks at the other processes
ABORT_SECONDS: Final = 30.0  # for this process to raise an error after another one has failed
EXIT_TIMEOUT_SECONDS: Final = 30.0  # for the other processes to end after rank 0
FORWARD_METHODS: Final = ("training_step", "observe")  # methods of the model that need its parameters unsharded


# -- processes ----------------------------------------------------------------------------------------------------


class ProcessRank(NamedTuple):
    """Rank of this process among the processes of a trial."""

    rank: int = 0
    world_size: int = 1

    @property
    def is_first(self) -> bool:
        return self.rank == 0

    def sum_shares(self, share: Tensor) -> Tensor:
        """Return the loss of a step, of which each process has a share."""
        if self.world_size == 1:
            return share
        total = share.clone()
        torch.distributed.all_reduce(total)
        return total

    def any_true(self, values: Sequence[bool], device: torch.device) -> list[bool]:
        """Return for each value if it is true in any process."""
        if self.world_size == 1:
            return list(values)
        flags = torch.tensor([float(value) for value in values], device=device)
        torch.distributed.all_reduce(flags)
        return [flag > 0 for flag in flags.tolist()]


def process_count(trainer: Mapping[str, Any]) -> int:
    """Return the number of processes that a trainer needs on this machine."""
    count = requested_processes(trainer)
    if count is not None:
        return count
    return max(1, torch.cuda.device_count()) if trainer.get("accelerator", "auto") != "cpu" else 1


def needs_process_group(trainer: Mapping[str, Any]) -> bool:
    """Return True if a trial has several processes, or shards its parameters over its only one."""
    return process_count(trainer) > 1 or uses_sharding(trainer)


def validate_devices(trainer: Mapping[str, Any]) -> None:
    """Raise an error for options that do not work on several devices."""
    for key, message, valid in trainer_problems(trainer):
        raise _refused(key, message, valid)


def lightning_strategy(trainer: Mapping[str, Any], count: int) -> Any:
    """Return Lightning's strategy. Its own `fsdp` needs CUDA; torch's newer `fully_shard` runs on any device."""
    strategy = trainer.get("strategy", "auto")
    return ModelParallelStrategy(count, 1) if strategy == IN_PIECES else strategy


def set_current_device(device: torch.device) -> None:
    """Make a GPU the current one of this process, which would otherwise also use memory of the first GPU."""
    if device.type == "cuda" and device.index is not None:
        torch.cuda.set_device(device)


def run_distributed(trainer: Mapping[str, Any], run: Callable[[ProcessRank], Record]) -> Record:
    """Call `run` in as many processes as the trainer needs, this one as rank 0, and return its result in this one."""
    if not needs_process_group(trainer):
        return run(ProcessRank())
    count = process_count(trainer)
    validate_devices(trainer)
    if not may_fork():
        message = (
            f"{count} devices need one process each, and this process cannot be forked: it has threads or uses CUDA"
        )
        raise _refused("devices", message, "1, or `paribus train` or a study, which run trials in single threads")
    with _process_group_environment(count):
        ranks = {_fork(ProcessRank(rank, count), run): rank for rank in range(1, count)}
        try:
            with _monitored(ranks):
                result = run(ProcessRank(0, count))
        except BaseException as error:
            _raise_first_failure(_wait(ranks, 1.0), error)
            raise
        _wait(ranks, EXIT_TIMEOUT_SECONDS)
        return result


def _fork(rank: ProcessRank, run: Callable[[ProcessRank], Any]) -> int:
    parent = os.getpid()
    pid = os.fork()
    if pid:
        return pid
    code = 1
    gc.freeze()  # the process group of an earlier trial would wait for threads that a forked process does not have
    try:
        die_with_parent(parent)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1):
            signal.signal(number, signal.SIG_IGN)  # rank 0 handles signals, and all stop at the same step
        os.environ["LOCAL_RANK"] = str(rank.rank)
        run(rank)
        code = 0
    except Exception as error:
        if type(error).__name__ in ("DivergedError", "InterruptedTrialError"):
            code = 0
        else:
            print(f"process {rank.rank} of {rank.world_size}:", file=sys.stderr)  # noqa: T201  # goes to the trial's log
            traceback.print_exc()
    finally:
        with suppress(Exception):
            sys.stderr.flush()
        os._exit(code)


@contextmanager
def _monitored(ranks: Mapping[int, int]) -> Iterator[None]:
    """Abort collective operations of this process, and later end it, when one of the other processes has failed.

    NCCL would wait for that process until its timeout, which is minutes, and a GPU that waits does not raise an error.
    """
    is_done = threading.Event()
    thread = threading.Thread(target=_monitor, args=(ranks, is_done), name=RANK_MONITOR, daemon=True)
    thread.start()
    try:
        yield
    finally:
        is_done.set()
        thread.join()


def _monitor(ranks: Mapping[int, int], is_done: threading.Event) -> None:
    while not is_done.wait(MONITOR_SECONDS):
        failed = [(rank, status) for pid, rank in ranks.items() if (status := _failure_status(pid))]
        if not failed:
            continue
        # In a thread of its own: the function may itself wait for the GPU.
        threading.Thread(target=_abort_nccl, name=RANK_MONITOR, daemon=True).start()
        if not is_done.wait(ABORT_SECONDS):
            _end_trial(ranks, *failed[0])
        return


def _failure_status(pid: int) -> int:
    """Return the exit code of a process that has failed, negative for a signal, else 0; the process is not reaped."""
    if not hasattr(os, "waitid"):  # macOS before Python 3.13
        return 0
    with suppress(ChildProcessError):
        ended = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        if ended is not None:
            return ended.si_status if ended.si_code == os.CLD_EXITED else -ended.si_status
    return 0


def _abort_nccl() -> None:
    """Abort the process group, so that this process gets an error; other backends raise one by themselves."""
    abort = getattr(torch.distributed.distributed_c10d, "_abort_process_group", None)
    if abort is not None and torch.distributed.is_initialized() and torch.distributed.get_backend() == "nccl":
        with suppress(Exception):
            abort()


def _end_trial(ranks: Mapping[int, int], rank: int, status: int) -> None:
    reason = f"exit code {status}" if status > 0 else f"signal {-status}"
    message = f"process {rank} of the trial failed ({reason}), and process 0 still waited for it: see the log"
    print(message, file=sys.stderr, flush=True)  # noqa: T201  # goes to the trial's log
    for pid in ranks:
        with suppress(OSError):
            os.kill(pid, signal.SIGKILL)
    if status < 0:  # so that the trial is retried
        os.kill(os.getpid(), signal.SIGKILL)
    os._exit(EXIT_FAILED)


def _wait(ranks: Mapping[int, int], seconds: float) -> dict[int, int]:
    """Return the exit codes by rank, negative for signals; kill the processes that have not ended in time."""
    codes: dict[int, int] = {}
    deadline = time.monotonic() + seconds
    running = dict(ranks)
    while running:
        for pid, rank in list(running.items()):
            ended, status = os.waitpid(pid, os.WNOHANG)
            if ended:
                codes[rank] = os.waitstatus_to_exitcode(status)
                del running[pid]
        if running and time.monotonic() > deadline:
            for pid in running:
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
            break
        time.sleep(POLL_SECONDS if running else 0)
    return codes


def _raise_first_failure(codes: Mapping[int, int], error: BaseException) -> None:
    """Raise the failure of another process that failed first: the error of this process is only its consequence.

    An error in the input is none: every process finds it by itself.
    """
    if isinstance(error, ParibusError):
        return
    failed = {rank: code for rank, code in codes.items() if code}
    if not failed or not isinstance(error, Exception):
        return
    rank, code = next(iter(failed.items()))
    if code < 0:  # killed by a signal: so is the trial, which is then retried
        os.kill(os.getpid(), -code)
    raise RuntimeError(f"process {rank} of the trial failed first, see the log; here: {error}") from error


@contextmanager
def _process_group_environment(count: int) -> Iterator[None]:
    """Set the variables by which Lightning finds processes that are already running, and their address."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    variables = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "LOCAL_RANK": "0", "WORLD_SIZE": str(count)}
    previous = {name: os.environ.get(name) for name in (*variables, "NODE_RANK")}
    os.environ.update({**variables, "NODE_RANK": "0"})
    try:
        yield
    finally:
        if torch.distributed.is_initialized():
            torch.distributed.destroy_process_group()
        for name, value in previous.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def _refused(key: str, message: str, valid: str) -> SpecError:
    return SpecError(Problem(code="trainer-error", path=f"trainer.{key}", message=message, valid=valid))


# -- sharded parameters -------------------------------------------------------------------------------------------


def shard(model: nn.Module, device: torch.device) -> None:
    """Shard the parameters of a model over all processes."""
    if scalars := [name for name, parameter in model.named_parameters() if not parameter.ndim]:
        message = f"parameters without dimensions cannot be sharded: {join_names(scalars)}"
        raise SpecError(Problem(code="trainer-error", path="trainer.strategy", message=message, valid="ddp"))
    mesh = _mesh(device)
    for unit in shard_units(model):
        unit.register_forward_hook(_copy_views)
        fully_shard(unit, mesh=mesh)
    fully_shard(model, mesh=mesh)
    for method in FORWARD_METHODS:
        register_fsdp_forward_method(model, method)


def _mesh(device: torch.device) -> DeviceMesh:
    """Return a mesh of all processes. Torch caches its state by mesh, and a forked process would inherit that of
    another rank, so the mesh of each trial has a name of its own."""
    name = f"pieces-{os.environ.get('MASTER_PORT', '')}"
    return init_device_mesh(device.type, (torch.distributed.get_world_size(),), mesh_dim_names=(name,))


def _copy_views(module: nn.Module, inputs: object, output: Tensor | tuple[Tensor | None, ...]) -> Any:
    """Copy outputs that are views: an in-place operation on a view would drop the hook that unshards for backward."""
    if isinstance(output, tuple):
        return tuple(None if tensor is None else _copy_views(module, inputs, tensor) for tensor in output)
    return output.clone() if output._is_view() else output


def shard_units(model: nn.Module) -> list[nn.Module]:
    """Return the attentions and feed-forwards of all layers that share no parameter with another module."""
    layers = [module for module in model.modules() if isinstance(module, Layer)]
    parts = [part for layer in layers for part in (layer.attention, layer.cross, layer.feedforward)]
    candidates = list(dict.fromkeys(part for part in parts if isinstance(part, nn.Module)))
    inside = {module for part in candidates for module in part.modules()}
    outside = {
        id(parameter)
        for module in model.modules()
        if module not in inside
        for parameter in module.parameters(recurse=False)
    }
    counts = Counter(id(parameter) for part in candidates for parameter in part.parameters())
    units: list[nn.Module] = []
    for part in candidates:
        parameters = [id(parameter) for parameter in part.parameters()]
        if parameters and all(counts[key] == 1 and key not in outside for key in parameters):
            units.append(part)
    return units


def is_sharded(model: nn.Module) -> bool:
    return isinstance(model, FSDPModule)


@contextmanager
def unsharded(model: nn.Module) -> Iterator[None]:
    """Hold the full model in each process for the block; no effect on a model that is not sharded."""
    for module in _units(model):
        module.unshard()
        module.set_reshard_after_forward(False, recurse=False)
    try:
        yield
    finally:
        for module in _units(model):
            module.set_reshard_after_forward(id(module) != id(model), recurse=False)
        drop_full_parameters(model)


def drop_full_parameters(model: nn.Module) -> None:
    """Free the full parameters of a sharded model, which torch keeps after a forward pass and would use again."""
    for module in _units(model):
        module.reshard()


def _units(model: nn.Module) -> list[FSDPModule]:
    return [module for module in model.modules() if isinstance(module, FSDPModule)]


def full_tensor(tensor: Tensor) -> Tensor:
    """Return the full tensor of a sharded one, which all processes have to request; any other tensor as it is."""
    if not isinstance(tensor, DTensor):
        return tensor
    with torch.no_grad():
        return tensor.full_tensor().cpu()


def shard_like(tensor: Tensor, reference: Tensor) -> Tensor:
    """Return a full tensor sharded as `reference` is, or replicated where their shapes differ."""
    if not isinstance(reference, DTensor) or not tensor.ndim:
        return tensor
    mesh = reference.device_mesh
    assert mesh.get_coordinate() == (mesh.get_local_rank(),), "this process has the mesh of another rank"
    placements = reference.placements if tensor.shape == reference.shape else [Replicate()]
    result: Tensor = distribute_tensor(tensor.to(reference.device), mesh, placements, src_data_rank=None)
    return result
