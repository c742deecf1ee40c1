"""What the process of a trial does, from an order to an exit code; `python -m paribus.runner.worker` is such a process.

It holds the trial's lock while it runs. Whatever the trial raises becomes a state on disk and one last line of output.

One accelerator a trial: those that run at once are dealt out over the devices that there are.
"""

from __future__ import annotations

import json
import math
import os
import sys
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, final

from paribus.errors import EXIT_OK, ParibusError
from paribus.runner.outcomes import EXIT_LOCKED, Failure, describe_failure
from paribus.runner.signals import StopRequest, catch_signals, die_with_parent
from paribus.runner.trial_output import ProgressLine, ProgressWriter
from paribus.specs.trainer_options import lasting
from paribus.storage.atomic import FILES, Files, remove_temporary_files
from paribus.storage.lease import HostIdentity
from paribus.storage.store import FAILURE, LOGS, PROGRESS, Store
from paribus.storage.trial_lock import LostLeaseError, TrialLock

if TYPE_CHECKING:
    from paribus.registry import Registry


CUDA_DEVICES: Final = "CUDA_VISIBLE_DEVICES"
NVIDIA: Final = Path("/proc/driver/nvidia/gpus")


def gpu_count() -> int:
    """Those that a trial may use, as far as can be told without torch."""
    named = os.environ.get(CUDA_DEVICES)
    if named is not None:
        return sum(each.strip() not in ("", "-1") for each in named.split(","))
    with suppress(OSError):
        return len(list(NVIDIA.iterdir()))
    return 0


def select_device(place: int, trainer: Mapping[str, Any]) -> None:
    """Lets this process see one device, before anything of CUDA is touched; a trial that wants several sees all."""
    import torch

    if trainer.get("devices", 1) in (1, "auto"):
        named = os.environ.get(CUDA_DEVICES)
        there = named.split(",") if named else [str(number) for number in range(torch.cuda.device_count())]
        chosen = device_at(place, there)
        if chosen is not None:
            os.environ[CUDA_DEVICES] = chosen


def device_at(place: int, devices: Sequence[str]) -> str | None:
    """The device of the trial at `place` among those that run at once; None where there is nothing to choose."""
    return devices[place % len(devices)] if len(devices) > 1 else None


CHECKPOINT_SECONDS: Final = 30.0


@final
@dataclass(frozen=True, kw_only=True)
class WorkerRequest:
    """One trial to be run, as a process is told of it."""

    store: str  # the folder of all studies
    study: str
    identity: str
    spec: Mapping[str, Any]
    plugins: Mapping[str, Any] = field(
        default_factory=dict
    )  # for a process that has not loaded them: installed(**plugins)
    timing: Mapping[str, Any] = field(default_factory=dict)  # what is to be timed, in place of a trial
    rehearsal: bool = False  # a first step that nobody is told of
    contended: bool = False
    checkpoint_seconds: float = CHECKPOINT_SECONDS
    checkpoint_steps: int | None = None
    loggers: list[Mapping[str, Any]] = field(default_factory=list)
    variant: str = ""  # what loggers call it by
    job_slot: int | None = None  # among the trials that run at once; None: alone
    expired_token: str = ""  # the last sign of life of whoever held it on another machine, and is dead

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> WorkerRequest:
        return cls(**json.loads(text))


@final
class RehearsalHooks:
    """The hooks of a trial's life during a rehearsal: the trainer is configured, and nobody is told."""

    def __init__(self, hooks: Any) -> None:
        self.configure_trainer = hooks.configure_trainer

    def trial_started(self, **told: Any) -> None:
        """Nobody is told."""

    def trial_finished(self, **told: Any) -> None:
        """Nobody is told."""


def run_request(
    order: WorkerRequest,
    registry: Registry,
    *,
    stop: StopRequest,
    until: float = math.inf,
    listen: Callable[[ProgressLine], None] = lambda told: None,
    files: Files = FILES,
    host: HostIdentity | None = None,
) -> int:
    """Runs the trial in this process, unless somebody else does; the exit code says how it went.

    It ends when `stop` is asked, or at its first step after `until` on the monotonic clock, with a checkpoint.
    """
    if order.timing:
        from paribus.runner.timing import execute_timing

        return execute_timing(order, registry, stop.poll)
    store = Store(Path(order.store), order.study, files, host)
    try:
        claim = store.lock(order.identity)
        if not claim.try_acquire(order.expired_token):
            _say(f"held by {claim.owner() or 'another process'}")
            return EXIT_LOCKED
        with claim:
            fenced = Store(Path(order.store), order.study, claim.fenced_files(files), host)
            return _unless_done(order, registry, _Desk(fenced, claim, stop, until, listen))
    except LostLeaseError as error:
        _say(str(error))
        return EXIT_LOCKED
    except BaseException as error:
        if (stop.is_requested and not isinstance(error, Exception)) or _is_interruption(error):
            return _interrupted(order, store, stop)
        return _failed(order, store, error)


@final
@dataclass(frozen=True)
class _Desk:
    """What a trial's work has to do with the outside."""

    store: Store
    claim: TrialLock
    stop: StopRequest
    until: float
    listen: Callable[[ProgressLine], None]

    def asking(self) -> Callable[[], bool]:
        parent = os.getppid()  # another one later: orphaned, where the kernel does not see to that
        check = self.claim.periodic_check()

        def asked() -> bool:
            check()
            return self.stop.poll() or time.monotonic() > self.until or os.getppid() != parent

        return asked


def _unless_done(order: WorkerRequest, registry: Registry, desk: _Desk) -> int:
    from paribus.inference.translate import translated
    from paribus.train.loggers import LoggerRun
    from paribus.train.trial import DEFAULT_STEPS, TrialContext, run_trial

    store = desk.store
    if store.record(order.identity) is not None:  # another process was faster
        return EXIT_OK
    folder = store.folder(order.identity)
    trainer = order.spec["trainer"] or {}
    steps = trainer.get("max_steps") or (DEFAULT_STEPS if lasting(trainer) is None else None)
    telling = ProgressWriter(folder / PROGRESS, steps, desk.listen, files=store.files)
    for note in store.messages:
        telling.write_message(note)
    remove_temporary_files(folder, files=store.files)
    with suppress(OSError):
        store.files.unlink(folder / FAILURE)  # of an earlier try
    known = {} if order.rehearsal else store.trial(order.identity) or {}
    terms = TrialContext(
        identity=order.identity,
        folder=folder,
        checkpoint_seconds=order.checkpoint_seconds,
        checkpoint_steps=order.checkpoint_steps,
        should_stop=desk.asking(),
        on_step=telling.write_step,
        on_message=telling.write_message,
        contended=order.contended,
        hooks=RehearsalHooks(registry.hook) if order.rehearsal else registry.hook,
        changes=known.get("changes") or {},
        baseline_values=known.get("baseline_values") or {},
        files=store.files,
        loggers=order.loggers,
        logger_run=LoggerRun(order.study, order.variant, order.spec["seed"], order.identity, store.root / LOGS)
        if order.loggers and not order.rehearsal
        else None,
        writer=translated,
    )
    if order.job_slot is not None:
        select_device(order.job_slot, order.spec["trainer"] or {})
    run_trial(order.spec, registry, terms)
    return EXIT_OK


def _is_interruption(error: BaseException) -> bool:
    from paribus.train.trial_callback import InterruptedTrialError

    return isinstance(error, InterruptedTrialError)


def _interrupted(order: WorkerRequest, store: Store, stop: StopRequest) -> int:
    why = "it was asked to stop; it goes on when it is run again"
    _ended(order, store, Failure("interrupted", why, "", stop.exit_code))
    return stop.exit_code


def _failed(order: WorkerRequest, store: Store, error: BaseException) -> int:
    with suppress(Exception):  # a traceback that cannot be printed hides no failure
        traceback.print_exception(error)
    failure = describe_failure(error)
    _ended(order, store, failure)
    return failure.code


def _ended(order: WorkerRequest, store: Store, failure: Failure) -> None:
    with suppress(ParibusError):  # the disk may be what failed: the last line and the exit code tell the supervisor
        store.write_failure(order.identity, failure.state, failure.reason, frame=failure.frame, code=failure.code)
    _say(failure.reason)


def _say(line: str) -> None:
    with suppress(OSError, ValueError):
        print(line, file=sys.stderr, flush=True)  # noqa: T201  # the log is where this is read


def exit_on_signal(stop: StopRequest) -> None:
    """What a signal does to a trial's process: it ends at once if asked again, or if no step was taken as yet."""
    if stop.at_once or not stop.is_polled:
        os._exit(stop.exit_code)


def main() -> None:
    """Reads an order and carries it out, in a process that has loaded nothing yet; its parent may be named."""
    die_with_parent(int(sys.argv[1]) if len(sys.argv) > 1 else os.getppid())
    stop = StopRequest()
    with catch_signals(stop, lambda: exit_on_signal(stop)):
        order = WorkerRequest.from_json(sys.stdin.read())
        sys.exit(_fresh(order, stop))


def _fresh(order: WorkerRequest, stop: StopRequest) -> int:
    from paribus.registry import installed

    try:
        registry = installed(**order.plugins)
    except ParibusError as error:
        return _failed(order, Store(Path(order.store), order.study), error)
    import torch

    torch.set_num_threads(1)
    return run_request(order, registry, stop=stop)


if __name__ == "__main__":
    main()
