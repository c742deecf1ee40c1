"""Checks of launchers: jobs that succeed, that fail, that are stopped, and a second opening.

The jobs are timing requests, which need no store: one without specs, one with an invalid spec, and one that takes long.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

from paribus.assembly.components import make
from paribus.errors import ParibusError
from paribus.runner.worker import WorkerRequest
from paribus.slots.launcher import Job, JobEnded, JobStarted, Launcher, LauncherEvent, Plugins
from paribus.specs import resolved
from paribus.testing.host_models import DOES_NOT_APPLY, HOLDS, Case, HostModel, Verdict

SECONDS: Final = 120.0  # time for a job to start, and for one to end
STOP_SECONDS: Final = 30.0  # time for a killed job to end
QUEUE_SECONDS: Final = 20.0  # time for a first job to start on other machines


def launched_jobs(case: Case, host: HostModel) -> Verdict:
    """Each job starts once, ends once with its own exit code and last line, and can be repeated after `close`.

    A launcher that cannot be opened here, because a library or a scheduler is missing, is skipped.
    """
    with TemporaryDirectory() as folder, _opened(case) as launcher:
        if launcher is None:
            return DOES_NOT_APPLY
        jobs = {name: _job(case, Path(folder), name) for name in ("good", "bad", "second-good")}
        for name in ("good", "bad"):
            launcher.start(jobs[name])
        fault = _events_fault(_wait(launcher, {"good", "bad"}), Path(folder))
        if fault:
            return fault
        launcher.close()
        if list(launcher.poll(0.0)):
            return "`poll` returns events after `close`"
        launcher.open(Plugins())
        launcher.start(jobs["second-good"])
        ended = [event for event in _wait(launcher, {"second-good"}) if isinstance(event, JobEnded)]
        if [event.name for event in ended] != ["second-good"]:
            return f"after `close` and `open`, the ended jobs are {[event.name for event in ended]}; expected one job"
    return HOLDS


def _events_fault(events: list[LauncherEvent], folder: Path) -> str:
    """Return a message if a good and a bad job were not reported as such."""
    for name in ("good", "bad"):
        kinds = [type(event) for event in events if isinstance(event, JobStarted | JobEnded) and event.name == name]
        if kinds != [JobStarted, JobEnded]:
            return f"a job has the events {[kind.__name__ for kind in kinds]}; expected a `JobStarted`, a `JobEnded`"
    ends = {event.name: event for event in events if isinstance(event, JobEnded)}
    if (ends["good"].code, ends["good"].signal) != (0, None):
        return f"a job with the exit code 0 is reported with {ends['good'].code}, signal {ends['good'].signal}"
    if not ends["bad"].code or ends["bad"].signal is not None:
        return f"a job that fails is reported with the exit code {ends['bad'].code}, signal {ends['bad'].signal}"
    log = folder / "bad.txt"
    text = log.read_text() if log.exists() else ""
    if not ends["bad"].last_line or ends["bad"].last_line not in text:
        return f"the last line of a failed job is {ends['bad'].last_line!r}; expected the last line of its log"
    return HOLDS


def stopped_jobs(case: Case, host: HostModel) -> Verdict:
    """SIGKILL ends the job that it is sent to, which is not reported as a success; other jobs continue."""
    with TemporaryDirectory() as folder, _opened(case) as launcher:
        if launcher is None:
            return DOES_NOT_APPLY
        launcher.start(_job(case, Path(folder), "long"))
        launcher.start(_job(case, Path(folder), "other-long"))
        started = _wait(launcher, {"long", "other-long"}, JobStarted)
        if len(started) < 2:
            return "two jobs that are started do not run at a time"
        launcher.stop("long", signal.SIGKILL)
        events = [*_wait(launcher, {"long"}, seconds=STOP_SECONDS), *_wait(launcher, {"other-long"}, seconds=1.0)]
        ends = [event for event in events if isinstance(event, JobEnded)]
        if [event.name for event in ends] != ["long"]:
            return f"after a SIGKILL for `long`, the jobs that ended are {[event.name for event in ends]}"
        if ends[0].code == 0:
            return "a job that was killed is reported with the exit code 0"
    return HOLDS


@contextmanager
def _opened(case: Case) -> Iterator[Launcher | None]:
    """Open a launcher, and close it; None if it cannot be opened, or its machines start no job."""
    node = {"name": case.entry.name, **{option.name: option.sample for option in case.entry.options}}
    try:
        launcher = make(case.registry, "launcher", node, kind=Launcher)
        launcher.open(Plugins())
    except ParibusError:
        yield None
        return
    try:
        yield launcher if _starts_jobs(case, launcher) else None
    finally:
        launcher.close()


def _starts_jobs(case: Case, launcher: Launcher) -> bool:
    """Return False if a launcher on other machines reports no start of a job."""
    if not launcher.is_remote:
        return True
    with TemporaryDirectory() as folder:
        launcher.start(_job(case, Path(folder), "first-good"))
        events = _wait(launcher, {"first-good"}, JobStarted, QUEUE_SECONDS)
        return any(isinstance(event, JobStarted) for event in events)


def _job(case: Case, folder: Path, name: str) -> Job:
    timing: dict[str, Any] = {"specs": {}, "groups": [], "seconds": 0.0, "into": "timing.json"}
    if name == "bad":
        timing["specs"] = {"bad": {}}
    elif name.endswith("long"):
        spec = resolved({"preset": "encoder-tiny"}, registry=case.registry)
        timing |= {"specs": {"long": spec}, "groups": [["long"]], "seconds": 10 * SECONDS}
    request = WorkerRequest(store=str(folder), study=name, identity=name, spec={}, timing=timing)
    return Job(name, request.to_json(), str(folder / f"{name}.txt"))


def _wait(
    launcher: Launcher, names: set[str], kind: type[JobStarted | JobEnded] = JobEnded, seconds: float = SECONDS
) -> list[LauncherEvent]:
    """Return the events of jobs until all of them have one of a kind, or the time is over."""
    events: list[LauncherEvent] = []
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        events += [event for event in launcher.poll(0.1) if isinstance(event, JobStarted | JobEnded)]
        if names <= {event.name for event in events if isinstance(event, kind)}:
            break
    return events
