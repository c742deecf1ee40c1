"""Worker: runs one request (a trial or a timing pass) in this process; `python -m paribus.runner.worker` is one.

It locks the trial while it runs. An error of the trial becomes a state on disk and the last line of output.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeAlias, final

from paribus.errors import EXIT_FAILED, EXIT_OK, ParibusError, PluginError, Problem, SpecError
from paribus.models.parent_process import die_with_parent
from paribus.planning.identity import component_problems
from paribus.runner.other_environment import VARIABLE as OTHER_ENVIRONMENT
from paribus.runner.other_environment import other_import_clock
from paribus.runner.outcomes import EXIT_LOCKED, INTERRUPTED, Failure, describe_failure
from paribus.runner.progress import ProgressWriter
from paribus.runner.signals import StopRequest, catch_signals
from paribus.specs.program_spec import is_program
from paribus.specs.trainer_options import max_seconds, requested_processes
from paribus.storage.atomic import FILES, Files, remove_temporary_files, write_json
from paribus.storage.lease import HostIdentity, LostLeaseError
from paribus.storage.saved_model import RECORD
from paribus.storage.store import FAILURE, LOGS, PROGRESS, Store
from paribus.train.trial_options import TrialOptions

if TYPE_CHECKING:
    from paribus.registry import Registry


CUDA_DEVICES: Final = "CUDA_VISIBLE_DEVICES"
TIMING_FILE: Final = "timing.json"  # in the folder of a study
NVIDIA: Final = Path("/proc/driver/nvidia/gpus")
DEVICE_FILES: Final = Path("/dev")


def gpu_count() -> int:
    """Return the number of GPUs that a trial may use, as far as it can be found without torch."""
    visible = os.environ.get(CUDA_DEVICES)
    if visible is not None:
        return sum(device.strip() not in ("", "-1") for device in visible.split(","))
    with suppress(OSError):
        return len(list(NVIDIA.iterdir()))
    files = sum(path.name.removeprefix("nvidia").isdecimal() for path in DEVICE_FILES.glob("nvidia*"))
    return files or _listed_gpus()  # a container may have the devices without /proc, and Windows neither


@cache
def _listed_gpus() -> int:
    """Return the number of GPUs that the driver's tool lists; 0 if it is not installed."""
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return 0
    with suppress(OSError, subprocess.SubprocessError):
        listed = subprocess.run([tool, "--list-gpus"], capture_output=True, text=True, timeout=20, check=False)
        return sum(line.startswith("GPU ") for line in listed.stdout.splitlines())
    return 0


def pin_threads() -> None:
    """Use one thread of the CPU for torch: another number changes the bits of a result."""
    import torch

    torch.set_num_threads(1)


def select_device(slot: int, trainer: Mapping[str, Any]) -> None:
    """Limit this process to the GPUs of its slot, before it uses CUDA."""
    import torch

    if uses_accelerator(trainer):
        visible = os.environ.get(CUDA_DEVICES)
        devices = visible.split(",") if visible else [str(number) for number in range(torch.cuda.device_count())]
        selected = devices_at(slot, devices, devices_per_trial(trainer, len(devices)))
        if selected:
            os.environ[CUDA_DEVICES] = ",".join(selected)


def uses_accelerator(trainer: Mapping[str, Any]) -> bool:
    return bool(trainer.get("accelerator", "auto") != "cpu")


def devices_per_trial(trainer: Mapping[str, Any], available: int) -> int:
    """Return the number of devices that a trial takes: all of them if it selects devices by their indices."""
    devices = trainer.get("devices", 1)
    names_devices = isinstance(devices, list | tuple) or (isinstance(devices, str) and "," in devices)
    count = None if names_devices else requested_processes(trainer)
    return max(1, available) if count is None else count


def devices_at(slot: int, devices: Sequence[str], count: int = 1) -> Sequence[str]:
    """Return the `count` devices of a slot; none if there is no choice."""
    groups = len(devices) // count
    if groups < 1 or len(devices) == 1 or count == len(devices):
        return []
    start = slot % groups * count
    return devices[start : start + count]


@final
@dataclass(frozen=True, kw_only=True)
class WorkerRequest:
    """Request to run one trial, sent to a process as JSON."""

    store: str  # folder of all studies
    study: str
    identity: str
    spec: Mapping[str, Any]
    options: TrialOptions = TrialOptions()
    components: Mapping[str, str] = field(default_factory=dict)  # hashes of the plan, by slot.name
    plugins: Mapping[str, Any] = field(default_factory=dict)  # arguments of `installed`, for a new process
    timing: Mapping[str, Any] = field(default_factory=dict)  # steps to time, instead of a trial
    is_rehearsal: bool = False  # first step only, without hooks and loggers
    variant: str = ""  # name for loggers
    job_slot: int | None = None  # index among the trials that run at a time; None: no selection of a GPU
    expired_token: str = ""  # last token of a remote runner that died while it ran the trial

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> WorkerRequest:
        document = json.loads(text)
        return cls(**{**document, "options": TrialOptions.from_json(document["options"])})


@final
class RehearsalHooks:
    """Plugin hooks of a rehearsal: the trainer is configured, the other hooks do nothing."""

    def __init__(self, hooks: Any) -> None:
        self.configure_trainer = hooks.configure_trainer

    def trial_started(self, **arguments: Any) -> None:
        """Do nothing."""

    def trial_finished(self, **arguments: Any) -> None:
        """Do nothing."""


OnLastLine: TypeAlias = Callable[[str], None]


def print_line(line: str) -> None:
    """Print a line to the log of the trial."""
    with suppress(OSError, ValueError):
        print(line, file=sys.stderr, flush=True)  # noqa: T201  # stderr is the log


def run_request(
    request: WorkerRequest,
    registry: Registry | None,
    *,
    stop: StopRequest,
    watch: Callable[[], None] = lambda: None,
    on_last_line: OnLastLine = print_line,
    files: Files = FILES,
    host: HostIdentity | None = None,
) -> int:
    """Run a request in this process and return the exit code; a trial that another process runs is left to it.

    A trial of a program needs no registry.
    A trial ends with a checkpoint when `stop` is requested. It calls `watch` at every step, and `on_last_line` with
    the reason of a failure.
    """
    if request.timing:
        assert registry is not None
        return _run_timing(request, registry, stop.poll, on_last_line)
    store = Store(Path(request.store), request.study, files, host)
    lock = store.lock(request.identity)
    try:
        if not lock.try_acquire(request.expired_token):
            on_last_line(f"locked by {lock.owner() or 'another process'}")
            return EXIT_LOCKED
        with lock:
            fenced = Store(Path(request.store), request.study, lock.fenced_files(files), host)
            check_lock, parent = lock.periodic_check(), os.getppid()

            def should_stop() -> bool:
                check_lock()
                watch()
                return stop.poll() or os.getppid() != parent  # orphaned, where the kernel does not kill orphans

            if registry is None:
                return _run_program(request, fenced, should_stop)
            return _run_trial(request, registry, fenced, should_stop)
    except LostLeaseError as error:
        on_last_line(str(error))
        return EXIT_LOCKED
    except BaseException as error:
        if (stop.is_requested and not isinstance(error, Exception)) or _is_interruption(error):
            failure = Failure("interrupted", INTERRUPTED, "", stop.exit_code)
        else:
            if registry is not None:
                _print_traceback(error)
            failure = describe_failure(error)
        return _write_failure(request, store, failure, on_last_line)


def _run_program(request: WorkerRequest, store: Store, should_stop: Callable[[], bool]) -> int:
    from paribus.program.input_files import changed_inputs
    from paribus.program.run_program import ProgramContext, run_program

    if store.record(request.identity) is not None:  # another process was faster
        return EXIT_OK
    changed = changed_inputs(request.components, request.spec)
    if changed is not None:
        raise changed
    folder = store.folder(request.identity)
    progress = _new_progress(store, folder, None)
    gpus = gpu_count()
    visible = [device for device in os.environ.get(CUDA_DEVICES, "").split(",") if device]
    devices = devices_at(request.job_slot or 0, visible or [str(number) for number in range(gpus)])
    context = ProgramContext(
        identity=request.identity,
        folder=folder,
        components=request.components,
        devices=devices if request.job_slot is not None else (),
        has_gpu=gpus > 0,
        contended=request.options.contended,
        should_stop=should_stop,
        on_step=progress.write_step,
    )
    record = run_program(request.spec, context)
    write_json(folder / RECORD, record, files=store.files)
    return EXIT_OK


def _new_progress(store: Store, folder: Path, steps: int | None) -> ProgressWriter:
    """Return the progress of a trial, in a folder without what an earlier attempt left."""
    progress = ProgressWriter(folder / PROGRESS, steps, files=store.files)
    for message in store.messages:
        progress.write_message(message)
    remove_temporary_files(folder, files=store.files)
    with suppress(OSError):
        store.files.unlink(folder / FAILURE)
    return progress


def _run_trial(request: WorkerRequest, registry: Registry, store: Store, should_stop: Callable[[], bool]) -> int:
    from paribus.inference.generate import translate_validation
    from paribus.train.trial import DEFAULT_STEPS, TrialContext, run_trial
    from paribus.train.trial_options import LoggerRun

    if store.record(request.identity) is not None:  # another process was faster
        return EXIT_OK
    if OTHER_ENVIRONMENT not in os.environ:  # which exists to find what depends on the process
        problems = tuple(component_problems(request.components, registry.index))
        if problems:
            raise PluginError(*problems)
    folder = store.folder(request.identity)
    trainer = request.spec["trainer"] or {}
    steps = trainer.get("max_steps") or (DEFAULT_STEPS if max_seconds(trainer) is None else None)
    progress = _new_progress(store, folder, steps)
    trial = {} if request.is_rehearsal else store.trial(request.identity) or {}
    should_stop, on_step = _stopped_at(request.options.stop_at_step, should_stop, progress.write_step)
    has_loggers = request.options.loggers and not request.is_rehearsal
    seed = request.spec["seed"]
    context = TrialContext(
        identity=request.identity,
        folder=folder,
        variant=request.variant,
        options=request.options,
        should_stop=should_stop,
        on_step=on_step,
        on_message=progress.write_message,
        hooks=RehearsalHooks(registry.hook) if request.is_rehearsal else registry.hook,
        changes=trial.get("changes") or {},
        baseline_values=trial.get("baseline_values") or {},
        files=store.files,
        logger_run=LoggerRun(request.study, request.variant, seed, request.identity, store.root / LOGS)
        if has_loggers
        else None,
        writer=translate_validation,
    )
    if request.job_slot is not None:
        select_device(request.job_slot, trainer)
    run_trial(request.spec, registry, context)
    return EXIT_OK


def _stopped_at(
    limit: int | None, should_stop: Callable[[], bool], on_step: Callable[[int, float], None]
) -> tuple[Callable[[], bool], Callable[[int, float], None]]:
    """Return both functions of a trial that stops at a step, too."""
    if limit is None:
        return should_stop, on_step
    step = 0

    def watch_step(current: int, loss: float) -> None:
        nonlocal step
        step = current
        on_step(current, loss)

    return lambda: should_stop() or step >= limit, watch_step


def _run_timing(
    request: WorkerRequest, registry: Registry, should_stop: Callable[[], bool], on_last_line: OnLastLine
) -> int:
    try:
        _measure_steps(Store(Path(request.store), request.study), request.timing, registry, should_stop)
    except ParibusError as error:
        on_last_line(str(error))
        return EXIT_FAILED
    return EXIT_OK


def _measure_steps(
    store: Store, timing: Mapping[str, Any], registry: Registry, should_stop: Callable[[], bool]
) -> None:
    """Measure the steps of a timing request, and write the results with the machine's description."""
    import torch

    from paribus.assembly.devices import training_device
    from paribus.evidence.provenance import provenance
    from paribus.runner.time_groups import time_groups
    from paribus.train.timed_steps import untimed_reason

    specs = timing["specs"]
    untimed = {name: reason for name, spec in specs.items() if (reason := untimed_reason(spec))}
    if untimed and "into" in timing:
        reasons = set(untimed.values())
        raise SpecError(*(Problem(code="timing-failed", path="match.on", message=reason) for reason in reasons))
    groups = [
        [name for name in (baseline, *variants) if name not in untimed]
        for baseline, *variants in timing["groups"]
        if baseline not in untimed
    ]
    if not groups:
        return
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    start = time.time()
    try:
        with torch.random.fork_rng(devices=[]):
            inference = bool(timing.get("inference"))
            timings = time_groups(specs, groups, timing["seconds"], registry, should_stop, inference=inference)
        description = provenance(start, 0.0, False, training_device(specs[groups[0][0]]))
    finally:
        torch.set_num_threads(threads)
    if should_stop():
        return
    machine = {key: description[key] for key in ("started", "ended", "host", "machine", "versions")}
    path = store.root / timing.get("into", TIMING_FILE)
    write_json(path, {**timings, **machine, "left_out": untimed}, files=store.files)


def _is_interruption(error: BaseException) -> bool:
    from paribus.program.run_program import ProgramStoppedError

    if isinstance(error, ProgramStoppedError) or "paribus.train.trial_callback" not in sys.modules:
        return isinstance(error, ProgramStoppedError)
    from paribus.train.trial_callback import InterruptedTrialError

    return isinstance(error, InterruptedTrialError)


def _print_traceback(error: BaseException) -> None:
    with suppress(Exception):  # a traceback that cannot be printed must not hide the failure
        traceback.print_exception(error)


def _write_failure(request: WorkerRequest, store: Store, failure: Failure, on_last_line: OnLastLine) -> int:
    with suppress(ParibusError):  # if the disk failed, the scheduler has the last line and the exit code
        store.write_failure(request.identity, failure.state, failure.reason, frame=failure.frame, code=failure.code)
    on_last_line(failure.reason)
    return failure.code


def exit_on_signal(stop: StopRequest) -> None:
    """Exit at a second signal, or at the first one if the trial has not trained a step yet."""
    if stop.at_once or not stop.is_polled:
        os._exit(stop.exit_code)


def main() -> None:
    """Run the request on standard input in a new process; the argument is the process to die with."""
    die_with_parent(int(sys.argv[1]) if len(sys.argv) > 1 else os.getppid())
    stop = StopRequest()
    with catch_signals(stop, lambda: exit_on_signal(stop)):
        sys.exit(_load_and_run(WorkerRequest.from_json(sys.stdin.read()), stop))


def _load_and_run(request: WorkerRequest, stop: StopRequest) -> int:
    from paribus.registry import installed

    if is_program(request.spec):
        return run_request(request, None, stop=stop)
    try:
        with other_import_clock():
            registry = installed(**request.plugins)
    except ParibusError as error:
        _print_traceback(error)
        store = Store(Path(request.store), request.study)
        return _write_failure(request, store, describe_failure(error), print_line)
    pin_threads()
    return run_request(request, registry, stop=stop)


if __name__ == "__main__":
    main()
