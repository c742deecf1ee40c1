"""Run of one trial of a program: its process in a folder of its own, its metrics while it runs, and its record."""

from __future__ import annotations

import json
import math
import os
import re
import resource
import select
import shutil
import signal
import socket
import subprocess
import sys
import time
import uuid
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final, final

from paribus.errors import DataError, ParibusError, Problem
from paribus.evidence.provenance import processor_name, versions
from paribus.models.parent_process import die_with_parent
from paribus.program import witness
from paribus.program.command import Command, Spec, command_of
from paribus.program.input_files import input_names, unlisted_input
from paribus.program.metric_files import OUTPUT, Point, printed_point, read_points
from paribus.program.orphans import ATTEMPT, OrphanGuard
from paribus.program.witness_file import WITNESS_FILE, read_witness
from paribus.specs.program_spec import PROGRAM
from paribus.storage.atomic import digest_json
from paribus.storage.engine import engine_hash

WORK: Final = "work"  # folder in which the program runs, in that of its trial
POLL_SECONDS: Final = 0.1
METRIC_SECONDS: Final = 1.0  # between looks at the file of metrics while the program runs
READ_SHARE: Final = 0.05  # of the time that may be spent on these looks
GPU_SECONDS: Final = 2.0  # between looks at the memory of GPUs
TAIL: Final = 20  # lines of output that are kept for the reason of a failure
RSS_UNIT: Final = 1 if sys.platform == "darwin" else 1024
READ_BYTES: Final = 1 << 16
STDOUT: Final = 1  # the log of the trial
USER_ENVIRONMENT: Final = "PARIBUS_USER_ENVIRONMENT"  # JSON of the user's variables that a trial's process changes
_OUT_OF_MEMORY: Final = re.compile(r"OutOfMemoryError|out of memory|MemoryError|Cannot allocate memory", re.IGNORECASE)
_UNKNOWN_OPTION: Final = re.compile(
    r"unrecognized arguments|no such option|unknown option|unexpected argument|not in struct|Could not override",
    re.IGNORECASE,
)


class ProgramStoppedError(Exception):
    """The program was asked to stop, and ended without a result."""


class ProgramFailedError(ParibusError):
    """The program ended with an error."""

    exit_code = 1

    def __init__(self, *problems: Problem, out_of_memory: bool = False) -> None:
        super().__init__(*problems)
        self.out_of_memory = out_of_memory


@final
@dataclass(frozen=True, kw_only=True)
class ProgramContext:
    """Surroundings of a trial of a program: nothing in them changes its result."""

    identity: str
    folder: Path  # of the trial
    components: Mapping[str, str]  # hashes of its inputs
    devices: Sequence[str] = ()  # GPUs of this trial, if there is a choice
    has_gpu: bool = False
    contended: bool = False
    should_stop: Callable[[], bool] = lambda: False
    on_step: Callable[[int, float], None] = lambda step, value: None


def run_program(spec: Spec, context: ProgramContext) -> dict[str, Any]:
    """Run the program of a spec in an empty folder, and return the record of the trial."""
    started, command, home = time.time(), command_of(spec), Path.cwd()
    folder = _make_folder(context, command, home)
    run = _Run(spec, command, context, folder)
    ended = run.wait()
    if ended.code != 0:
        raise _failure(ended, spec, home, folder)
    metric = spec[PROGRAM]["metric"]
    try:
        points = read_points(folder, metric["from"], metric["name"], run.points)
        seen = read_witness(folder)
    except DataError as error:
        raise ProgramFailedError(*error.problems) from error
    return {
        "identity": context.identity,
        "spec": dict(spec),
        "result": _result(points, metric["name"], context.components, seen),
        "provenance": {
            "started": started,
            "ended": time.time(),
            "training_seconds": ended.seconds,
            "cpu_seconds": ended.cpu_seconds,
            "peak_bytes": run.gpu_bytes or ended.peak_bytes,
            "contended": context.contended,
            "host": socket.gethostname(),
            "machine": _machine(context, run.environment),
            "versions": versions(),
            "engine": engine_hash(),
            "command": command.text,
            "executable": shutil.which(command.words[0]) or command.words[0],
            "source": source_state(home),
        },
    }


def _result(
    points: Sequence[Point], metric: str, components: Mapping[str, str], seen: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the part of the record that is equal when the trial is run again."""
    value = points[-1][metric]
    is_finite = math.isfinite(value)
    last = next((point[metric] for point in reversed(points) if math.isfinite(point[metric])), None)
    curve = [{key: number for key, number in point.items() if math.isfinite(number)} for point in points]
    return {
        "state": "done" if is_finite else "diverged",
        "steps": points[-1]["step"],
        "metrics": {key: number for key, number in curve[-1].items() if key != "step"} if is_finite else {},
        "curve": curve,
        "certificate": {
            "inputs": dict(components),
            "values": digest_json([repr(point[metric]) for point in points]),
            **({"witness": dict(seen)} if seen else {}),
        },
        **({} if is_finite else {"diverged": {"step": points[-1]["step"], "last_loss": last}}),
    }


def _make_folder(context: ProgramContext, command: Command, home: Path) -> Path:
    """Return the empty folder in which the program runs, with links to its inputs and the files of its options."""
    folder = context.folder / WORK
    shutil.rmtree(folder, ignore_errors=True)  # of an interrupted attempt
    folder.mkdir(parents=True)
    for name in input_names(context.components):
        if not Path(name).is_absolute():
            link = folder / os.path.normpath(name)
            link.parent.mkdir(parents=True, exist_ok=True)
            if not link.exists():
                link.symlink_to((home / name).absolute())
    for name, text in command.files.items():
        (folder / name).write_text(text, encoding="utf-8")
    return folder


def program_environment(command: Command, context: ProgramContext) -> dict[str, str]:
    """Return the environment of the user with the options of the trial and its GPUs; one thread unless set."""
    environment = dict(os.environ)
    user = json.loads(environment.pop(USER_ENVIRONMENT, "{}"))
    environment.pop("PYTHONPATH", None)
    environment |= user
    devices = {"CUDA_VISIBLE_DEVICES": ",".join(context.devices)} if context.devices else {}
    file = {witness.FILE: str((context.folder / WORK / WITNESS_FILE).absolute())}
    return {**environment, "PYTHONUNBUFFERED": "1", **file, **devices, **command.environment}


@final
@dataclass(frozen=True)
class _Ended:
    """End of the process, with what it cost."""

    code: int  # negative: the number of a signal
    seconds: float
    cpu_seconds: float
    peak_bytes: int  # of its largest process
    last_lines: tuple[str, ...]


@final
class _Run:
    """Running program: its output goes to the log, and its metrics to the progress of the trial."""

    def __init__(self, spec: Spec, command: Command, context: ProgramContext, folder: Path) -> None:
        self.context, self.folder = context, folder
        metric = spec[PROGRAM]["metric"]
        self.metric, self.source = str(metric["name"]), str(metric["from"])
        self.pattern = re.compile(metric["pattern"]) if self.source == OUTPUT else None
        self.points: list[Point] = []
        self.gpu_bytes = 0
        attempt = uuid.uuid4().hex  # so that a late guard of an attempt spares the next one
        self.environment = {**program_environment(command, context), ATTEMPT: attempt}
        self._tail: deque[str] = deque(maxlen=TAIL)
        self._unread = b""
        self._next_look = self._next_gpu_look = time.monotonic() + METRIC_SECONDS
        self._last_step = -1
        self._sampled_bytes = 0  # peak of the program alone
        self._own_bytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * RSS_UNIT
        self._start = time.monotonic()
        print(f"$ {command.text}", flush=True)  # noqa: T201  # stdout is the log
        try:
            self._process = subprocess.Popen(
                command.words,
                cwd=folder,
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                preexec_fn=partial(die_with_parent, os.getpid()),  # noqa: PLW1509  # this process has one thread
            )
        except OSError as error:
            message = f"`{command.words[0]}` cannot be started: {error.strerror or error}"
            valid = "a program on the PATH, or a path; a script needs the right to run, or its interpreter before it"
            raise ProgramFailedError(Problem(code="program-failed", message=message, valid=valid)) from error
        self._guard = OrphanGuard(f"{ATTEMPT}={attempt}")
        assert self._process.stdout is not None
        self._output = self._process.stdout.fileno()
        os.set_blocking(self._output, False)
        self._is_open = True  # whether the program may print more

    def wait(self) -> _Ended:
        """Return the end of the program; one that is asked to stop gets SIGTERM, and may end in its own time."""
        is_stopped = False
        while True:
            pid, status, usage = os.wait4(self._process.pid, os.WNOHANG)
            self._read_output()
            if pid:
                break
            if not is_stopped and self.context.should_stop():
                is_stopped = True
                self._terminate()
            self._look()
            self._wait_for_output()
            self._sampled_bytes = max(self._sampled_bytes, _peak_bytes(self._process.pid))
        code = self._process.returncode = os.waitstatus_to_exitcode(status)
        seconds = time.monotonic() - self._start
        self._end_line()
        if self._process.stdout is not None:
            self._process.stdout.close()
        if is_stopped or self.context.should_stop():  # it may end in order, with the values of a part of its steps
            self._guard.kill()
            raise ProgramStoppedError(f"stopped with exit code {code}")
        self._guard.release()
        peak_bytes = usage.ru_maxrss * RSS_UNIT
        if peak_bytes <= self._own_bytes and self._sampled_bytes:  # that of this process, from which it was forked
            peak_bytes = self._sampled_bytes
        return _Ended(code, seconds, usage.ru_utime + usage.ru_stime, peak_bytes, tuple(self._tail))

    def _terminate(self) -> None:
        """Send SIGTERM to the program and its subprocesses."""
        for pid in family(self._process.pid):
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGTERM)

    def _wait_for_output(self) -> None:
        if self._is_open:
            select.select([self._output], [], [], POLL_SECONDS)
        else:
            time.sleep(POLL_SECONDS)

    def _read_output(self) -> None:
        with suppress(BlockingIOError):
            while self._is_open:
                data = os.read(self._output, READ_BYTES)
                self._is_open = bool(data)
                with suppress(OSError):
                    os.write(STDOUT, data)
                *lines, self._unread = re.split(rb"\r\n|\n|\r", self._unread + data)
                for line in lines:
                    self._on_line(line)
                self._unread = self._unread[-READ_BYTES:]

    def _end_line(self) -> None:
        if self._unread:
            self._on_line(self._unread)
            self._unread = b""

    def _on_line(self, data: bytes) -> None:
        line = data.decode(errors="replace")
        if line.strip():
            self._tail.append(line.strip())
        if self.pattern is not None:
            point = printed_point(line, self.pattern, self.metric, len(self.points))
            if point is not None:
                self.points.append(point)
                self._report(point)

    def _look(self) -> None:
        """Report the last measurement, and the memory of GPUs, every now and then."""
        now = time.monotonic()
        if self.context.has_gpu and now >= self._next_gpu_look:
            self.gpu_bytes = max(self.gpu_bytes, gpu_bytes(family(self._process.pid)))
            self._next_gpu_look = time.monotonic() + max(GPU_SECONDS, (time.monotonic() - now) / READ_SHARE)
        if self.pattern is None and now >= self._next_look:
            with suppress(DataError, OSError, ValueError):  # not written yet, or half of a line
                self._report(read_points(self.folder, self.source, self.metric)[-1])
            self._next_look = time.monotonic() + max(METRIC_SECONDS, (time.monotonic() - now) / READ_SHARE)

    def _report(self, point: Point) -> None:
        if point["step"] != self._last_step:
            self._last_step = point["step"]
            self.context.on_step(point["step"], point[self.metric])


def _failure(ended: _Ended, spec: Spec, home: Path, work: Path) -> ProgramFailedError:
    """Return the error of a program that ended with a code other than 0, with its last line."""
    last = ended.last_lines[-1] if ended.last_lines else ""
    lines = "\n".join(ended.last_lines)
    hint = ""
    if ended.code < 0:
        end = f"was ended by signal {-ended.code} ({signal.Signals(-ended.code).name})"
        if -ended.code == signal.SIGKILL:
            end += ", likely because the machine was out of memory"
    else:
        end = f"ended with exit code {ended.code}"
    if _UNKNOWN_OPTION.search(lines):
        program = spec[PROGRAM]
        hint = (
            f"options are passed as `{program['options']}`, and the seed as `{program['seed_option']}`; "
            "`options` and `seed_option` of the study change this"
        )
    if "No module named" in lines:
        first = command_of(spec).words[0]
        hint = f"`{first}` is {shutil.which(first) or first}; activate the environment that has it, or give its path"
    if "No module named 'paribus'" in lines:
        hint += f"; a copy of {witness.__file__} beside the script works as well"
    else:
        hint = unlisted_input(lines, home, work.absolute(), spec[PROGRAM]["inputs"]) or hint
    text = f"the program {end}" + (f"; its last line was: {last}" if last else "; it printed nothing")
    is_memory = ended.code == -signal.SIGKILL or _OUT_OF_MEMORY.search(lines) is not None
    return ProgramFailedError(Problem(code="program-failed", message=text, hint=hint), out_of_memory=is_memory)


def _machine(context: ProgramContext, environment: Mapping[str, str]) -> dict[str, str]:
    """Return the hardware that speed depends on."""
    threads = environment.get("OMP_NUM_THREADS", "default")
    name = (context.has_gpu and _gpu_name()) or processor_name()
    return {"device": "cuda" if context.has_gpu else "cpu", "name": name, "threads": threads}


def _gpu_name() -> str:
    names = _query_gpus("--query-gpu=name")
    return names[0] if names else ""


def gpu_bytes(processes: set[int]) -> int:
    """Return the memory that processes use on GPUs, as the driver reports it."""
    total = 0
    for line in _query_gpus("--query-compute-apps=pid,used_gpu_memory"):
        pid, _, mebibytes = line.partition(",")
        with suppress(ValueError):
            total += int(mebibytes) * 2**20 if int(pid) in processes else 0
    return total


def _query_gpus(query: str) -> list[str]:
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return []
    with suppress(OSError, subprocess.SubprocessError):
        words = [tool, query, "--format=csv,noheader,nounits"]
        listed = subprocess.run(words, capture_output=True, text=True, timeout=20, check=False)
        return [line.strip() for line in listed.stdout.splitlines() if line.strip()]
    return []


def family(pid: int) -> set[int]:
    """Return a process and its subprocesses, as far as /proc lists them."""
    children: dict[int, list[int]] = {}
    for status in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError, ValueError, IndexError):
            parent = int(status.read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()[1])
            children.setdefault(parent, []).append(int(status.parent.name))
    found, waiting = {pid}, [pid]
    while waiting:
        for child in children.get(waiting.pop(), ()):
            if child not in found:
                found.add(child)
                waiting.append(child)
    return found


def source_state(folder: Path) -> dict[str, Any]:
    """Return the commit of the folder's repository, and whether files of it were changed since; empty without one."""
    words = ["git", "-C", str(folder)]
    with suppress(OSError, subprocess.SubprocessError):
        run = partial(subprocess.run, capture_output=True, text=True, timeout=20, check=False)
        head = run([*words, "rev-parse", "HEAD"])
        status = run([*words, "status", "--porcelain", "--untracked-files=no", "--", "."])
        if head.returncode == status.returncode == 0:
            return {"commit": head.stdout.strip(), "changed": bool(status.stdout.strip())}
    return {}


def _peak_bytes(pid: int) -> int:
    """Return the peak memory of a running process since it executed its program; 0 where it is not known."""
    with suppress(OSError, ValueError, IndexError):
        status = Path(f"/proc/{pid}/status").read_text(encoding="utf-8")
        return int(status.split("VmHWM:")[1].split()[0]) * 1024
    return 0
