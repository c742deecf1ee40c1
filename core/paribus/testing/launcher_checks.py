"""Checks of launchers: jobs that succeed, that fail, that are stopped, and that run when the launcher is closed.

One session of jobs serves all checks. The jobs are timing requests, which need no store. Most of them read the corpus
of a plugin, which reports their process and waits; so they also show that jobs load the plugins of a study.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final, NamedTuple, final

from paribus.assembly.components import make
from paribus.errors import ParibusError
from paribus.runner.processes import plugin_arguments
from paribus.runner.worker import WorkerRequest
from paribus.slots.launcher import Job, JobEnded, JobStarted, Launcher, Plugins
from paribus.specs import resolved
from paribus.testing.host_models import DOES_NOT_APPLY, HOLDS, Case, HostModel, Verdict

SECONDS: Final = 120.0  # time for a job to start, and for one to end
STOP_SECONDS: Final = 30.0  # time for a stopped job to end
QUEUE_SECONDS: Final = 20.0  # time for a first job to start on other machines
EVENT_SECONDS: Final = 5.0  # time until the event of something that has happened is reported
POLL_SECONDS: Final = 4.0  # which `poll` may wait for an event
CLOSE_SECONDS: Final = 0.1  # after `close`; a job that is only asked to end takes longer
EARLIER: Final = "output of an earlier attempt"
OTHERS_SECONDS: Final = 0.3  # time in which jobs that are not stopped continue
CORES: Final = (1, 2, 8, 64)
FAILING: Final = ("bad", "second-bad")  # jobs that fail together, on request
WAITING: Final = ("long", "other-long", "stopped")  # jobs that run until a signal
FAILURE: Final = "the corpus of the job fails, as requested"
_PLUGIN: Final = f'''
import os, signal, time
from pathlib import Path
from typing import Annotated

from paribus import Corpus, DataError, Problem, hookimpl


class WaitingCorpus(Corpus):
    """Corpus that reports its process, and then waits until it has to fail, or for a signal."""

    def __init__(self, *, folder: Annotated[str, "folder of its files"] = "", job: Annotated[str, "name"] = "") -> None:
        files = Path(folder)

        def stop(number, frame):
            time.sleep(0.2)  # as long as a checkpoint takes
            (files / f"{{job}}.checkpoint").touch()
            previous(number, frame)

        previous = signal.signal(signal.SIGTERM, stop)
        (files / f"{{job}}.new").write_text(f"{{os.uname().nodename}} {{os.getpid()}}")
        (files / f"{{job}}.new").rename(files / f"{{job}}.process")
        while not (job in {FAILING} and (files / "fail").exists()):
            time.sleep(0.01)
        raise DataError(Problem(code="conform", message="{FAILURE}"))

    def documents(self, split):
        return iter(())

    def fingerprint(self):
        return ""


@hookimpl
def corpus():
    return {{"conform-waiting": WaitingCorpus}}
'''


class Faults(NamedTuple):
    """Results of a session, by check."""

    launched: Verdict = DOES_NOT_APPLY
    stopped: Verdict = DOES_NOT_APPLY


def launched_jobs(case: Case, host: HostModel) -> Verdict:
    """Each job loads the plugins of the study, starts once, and ends once with its own exit code and last line.

    The default number of jobs is at least 1. A launcher that cannot be opened here, because a library or a scheduler is
    missing, is tried with each of its choices, such as a local executor, and otherwise skipped.
    """
    return _default_jobs_fault(case) or _faults(case).launched


def stopped_jobs(case: Case, host: HostModel) -> Verdict:
    """SIGTERM reaches a job, which ends itself; SIGKILL and `close` end it; other jobs continue.

    A killed job is not reported as a success, and a job that is stopped before it is submitted does not run.
    """
    return _faults(case).stopped


def _default_jobs_fault(case: Case) -> str:
    try:
        launcher = make(case.registry, "launcher", _nodes(case)[0], kind=Launcher)
    except ParibusError:
        return HOLDS
    without_gpus = [launcher.default_jobs(cores, 0) for cores in CORES]
    with_gpus = [launcher.default_jobs(8, gpus) for gpus in (1, 2, 8)]
    if min(*without_gpus, *with_gpus) < 1:
        return f"`default_jobs` is {min(*without_gpus, *with_gpus)}; expected at least 1"
    if without_gpus != sorted(without_gpus):
        return f"`default_jobs` is {without_gpus} for {CORES} cores; expected no fewer jobs on more cores"
    if len(set(with_gpus)) > 1 and len(set(without_gpus)) == 1:
        return (
            f"`default_jobs` depends on the number of GPUs, but without them it is {without_gpus[0]} for any number of "
            "cores; expected jobs that use the cores"
        )
    return HOLDS


def _faults(case: Case) -> Faults:
    """Return the results of a session, run once."""
    key = ("launcher",)
    if key not in case.setups:
        results = (_session_faults(case, node) for node in _nodes(case))
        case.setups[key] = next((faults for faults in results if faults != Faults()), Faults())
    faults: Faults = case.setups[key]
    return faults


def _nodes(case: Case) -> list[dict[str, Any]]:
    """Return the launcher with its example options, then with each other choice."""
    node = {"name": case.entry.name, **{option.name: option.sample for option in case.entry.options}}
    choices = [(option.name, choice) for option in case.entry.options for choice in option.kind.choices]
    return [node, *({**node, name: choice} for name, choice in choices if choice != node[name])]


def _session_faults(case: Case, node: Mapping[str, Any]) -> Faults:
    """Run a session; no result if the launcher cannot be opened, or starts no jobs here."""
    # A job that was killed may still write into the folder.
    with TemporaryDirectory(ignore_cleanup_errors=True) as folder, _opened(case, node, Path(folder)) as session:
        if session is None:
            return Faults()
        before = _process_settings()
        session.start("cancelled")
        if changed := [name for name, value in _process_settings().items() if value != before[name]]:
            return Faults(f"`start` changes {changed[0]} of this process, which later jobs inherit")
        session.launcher.stop("cancelled", signal.SIGKILL)
        cancelled = _cancelled_fault(session)
        launched = _running_fault(session)
        if launched is DOES_NOT_APPLY:
            return Faults(stopped=cancelled or DOES_NOT_APPLY)
        cancelled = cancelled or _cancelled_fault(session)  # by now it would run beside the others
        launched = launched or _ended_fault(session)
        if launched:
            return Faults(launched, cancelled or DOES_NOT_APPLY)
        return Faults(HOLDS, cancelled or _stop_fault(session) or _once_fault(session, ("long", "stopped")))


def _process_settings() -> dict[str, object]:
    """Return what a process inherits."""
    return {
        "the cores": os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else None,
        "the environment": dict(os.environ),
        "the working directory": str(Path.cwd()),
        "the priority": os.nice(0),
    }


def _cancelled_fault(session: Session) -> str:
    """Return a message if a job that was stopped before the first poll is not reported, or runs."""
    deadline = time.monotonic() + SECONDS
    while not session.ends("cancelled") and not session.has_started("cancelled") and time.monotonic() < deadline:
        session.poll(0.05)
        if session.events and time.monotonic() < deadline - STOP_SECONDS:  # the job has started
            deadline = time.monotonic() + STOP_SECONDS
    session.poll(OTHERS_SECONDS)  # a job that is submitted all the same is reported again
    ends = session.ends("cancelled")
    if len(ends) != 1 or ends[0].code == 0 or session.has_started("cancelled"):
        message = f"is reported with the exit codes {[end.code for end in ends]}" if ends else "does not end"
        return f"a job that is stopped before it is submitted {message}; expected one end, without a success"
    return HOLDS


def _running_fault(session: Session) -> Verdict:
    """Start jobs that wait, all at a time; DOES_NOT_APPLY if the scheduler starts none of them here."""
    session.start(*FAILING, *WAITING)
    if session.launcher.is_remote:
        session.wait({WAITING[0]}, JobStarted, QUEUE_SECONDS)
        if not session.events_of(WAITING[0], JobStarted):
            return DOES_NOT_APPLY
    deadline = time.monotonic() + SECONDS
    while not all(map(session.has_started, (*FAILING, *WAITING))):
        session.poll(0.05)
        ended = next((job for job in (*FAILING, *WAITING) if session.ends(job)), None)
        if ended is not None:
            return (
                f"a job that reads the corpus of a plugin ended: {session.ends(ended)[0].last_line!r}; expected a job "
                "that loads the plugins of the study, and runs beside others"
            )
        if time.monotonic() > deadline:  # a scheduler may run fewer at a time
            return (
                DOES_NOT_APPLY if session.launcher.is_remote else f"five jobs do not run at a time after {SECONDS:g} s"
            )
    session.wait({*FAILING, *WAITING}, JobStarted, EVENT_SECONDS)
    return HOLDS


def _ended_fault(session: Session) -> str:
    """Return a message if a good job, and two that fail together, are not reported as such."""
    session.start("good")
    session.wait({"good"})
    (session.folder / "fail").touch()
    deadline = time.monotonic() + SECONDS
    while any(map(session.runs_here, FAILING)) and time.monotonic() < deadline:
        time.sleep(0.02)
    time.sleep(OTHERS_SECONDS)  # both ends are reported by one poll
    late = _late_fault(session)
    session.wait(FAILING, JobEnded, SECONDS if session.launcher.is_remote else EVENT_SECONDS)
    fault = late or _once_fault(session, ("good", *FAILING))
    if fault:
        return fault
    good, bad = (session.ends(job)[0] for job in ("good", "bad"))
    if (good.code, good.signal) != (0, None):
        return f"a job with the exit code 0 is reported with {good.code}, signal {good.signal}"
    if not bad.code or bad.signal is not None:
        return f"a job that fails is reported with the exit code {bad.code}, signal {bad.signal}"
    return _log_fault(session, bad) or _late_stop_fault(session)


def _late_fault(session: Session) -> str:
    """Return a message if `poll` waits although jobs have ended."""
    begin = time.monotonic()
    session.poll(0.0 if session.launcher.is_remote else POLL_SECONDS)
    if session.ends("bad") and time.monotonic() - begin > POLL_SECONDS / 2:
        return f"`poll({POLL_SECONDS:g})` waits {time.monotonic() - begin:.1f} s although a job has ended before it"
    return HOLDS


def _log_fault(session: Session, bad: JobEnded) -> str:
    """Return a message if the log of a failed job lacks its last line, or what was there before."""
    log = session.log("bad")
    text = log.read_text(encoding="utf-8") if log.exists() else ""
    if FAILURE not in bad.last_line or bad.last_line not in text:
        return f"the last line of a failed job is {bad.last_line!r}; expected the last line of its log"
    if EARLIER not in text:
        return "the log of a job lacks the output of an earlier attempt; append to it"
    return HOLDS


def _late_stop_fault(session: Session) -> str:
    """Return a message if a job that has ended cannot be stopped."""
    try:
        session.launcher.stop("good", signal.SIGTERM)
    except Exception as error:
        return f"`stop` of a job that has ended raises {type(error).__name__}; expected no effect"
    return HOLDS


def _once_fault(session: Session, jobs: Collection[str]) -> str:
    for job in jobs:
        kinds = [type(event) for event in session.events if event.name == job]
        if kinds != [JobStarted, JobEnded]:
            return f"a job has the events {[kind.__name__ for kind in kinds]}; expected a `JobStarted`, a `JobEnded`"
    return HOLDS


def _stop_fault(session: Session) -> str:
    """Return a message if a signal does not reach its job only, or `close` leaves a process."""
    session.launcher.stop("stopped", signal.SIGTERM)
    session.wait({"stopped"}, JobEnded, STOP_SECONDS)
    ends = session.ends("stopped")
    if not ends or ends[0].signal == signal.SIGKILL or not (session.folder / "stopped.checkpoint").exists():
        end = f"ends with code {ends[0].code}, signal {ends[0].signal}" if ends else "does not end"
        return f"after a SIGTERM, a job {end}; expected a job that gets the signal, writes its checkpoint and ends"
    session.launcher.stop("long", signal.SIGKILL)
    session.wait({"long"}, JobEnded, STOP_SECONDS)
    session.wait({"other-long"}, JobEnded, OTHERS_SECONDS)
    ended = [job for job in WAITING if job != "stopped" and session.ends(job)]
    if ended != ["long"]:
        return f"after a SIGKILL for `long`, the jobs that ended are {ended}"
    code = session.ends("long")[0].code
    if code is not None and code <= 0:
        return f"a job that was killed is reported with the exit code {code}; expected no code, and the signal if known"
    return _close_fault(session)


def _close_fault(session: Session) -> str:
    """Return a message if `close` leaves a process, or events."""
    session.launcher.close()
    time.sleep(CLOSE_SECONDS)
    if not session.launcher.is_remote and session.runs_here("other-long"):
        return "the process of a job outlives `close`; kill it, and wait for its end"
    if list(session.launcher.poll(0.0)):
        return "`poll` returns events after `close`"
    deadline = time.monotonic() + STOP_SECONDS
    while session.runs_here("other-long"):
        if time.monotonic() > deadline:
            return f"the process of a job runs on {STOP_SECONDS:g} s after `close`"
        time.sleep(0.05)
    return HOLDS


@final
class Session:
    """Jobs of an open launcher in a folder, and their events so far."""

    def __init__(self, case: Case, launcher: Launcher, folder: Path, plugins: Plugins) -> None:
        self.launcher, self.folder = launcher, folder
        self.events: list[JobStarted | JobEnded] = []
        self._plugins = plugin_arguments(plugins)
        self._spec = resolved({"preset": "encoder-tiny"}, registry=case.registry)

    def start(self, *jobs: str) -> None:
        for job in jobs:
            corpus = {"name": "conform-waiting", "folder": str(self.folder), "job": job}
            specs = {} if job == "good" else {job: {**self._spec, "corpus": corpus}}
            timing = {"specs": specs, "groups": [[name] for name in specs], "seconds": 0.0, "into": "timing.json"}
            request = WorkerRequest(
                store=str(self.folder), study=job, identity=job, spec={}, plugins=self._plugins, timing=timing
            )
            self.log(job).parent.mkdir(parents=True)
            self.log(job).write_text(f"{EARLIER}\n", encoding="utf-8")
            self.launcher.start(Job(job, request.to_json(), str(self.log(job))))

    def log(self, job: str) -> Path:
        return self.folder / "study" / job / "log.txt"

    def poll(self, seconds: float) -> None:
        self.events += [event for event in self.launcher.poll(seconds) if isinstance(event, JobStarted | JobEnded)]

    def wait(
        self, jobs: Collection[str], kind: type[JobStarted | JobEnded] = JobEnded, seconds: float = SECONDS
    ) -> None:
        """Poll until all of the jobs have an event of a kind or an end, or the time is over."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline and not all(self.events_of(job, kind) or self.ends(job) for job in jobs):
            self.poll(0.05)

    def events_of(self, job: str, kind: type[JobStarted | JobEnded]) -> list[JobStarted | JobEnded]:
        return [event for event in self.events if event.name == job and isinstance(event, kind)]

    def ends(self, job: str) -> list[JobEnded]:
        return [event for event in self.events if event.name == job and isinstance(event, JobEnded)]

    def has_started(self, job: str) -> bool:
        return (self.folder / f"{job}.process").exists()

    def runs_here(self, job: str) -> bool:
        """Return True if the process of a job runs on this machine."""
        with suppress(OSError):
            machine, pid = (self.folder / f"{job}.process").read_text(encoding="utf-8").split()
            os.kill(int(pid), 0)
            state = Path(f"/proc/{pid}/stat")
            is_zombie = state.exists() and state.read_text(encoding="utf-8").rpartition(")")[2].split()[0] == "Z"
            return machine == os.uname().nodename and not is_zombie
        return False

    def kill_jobs(self) -> None:
        """Kill the processes that the launcher did not end."""
        for path in self.folder.glob("*.process"):
            if self.runs_here(path.stem):
                with suppress(OSError):
                    os.kill(int(path.read_text(encoding="utf-8").split()[1]), signal.SIGKILL)


@contextmanager
def _opened(case: Case, node: Mapping[str, Any], folder: Path) -> Iterator[Session | None]:
    """Open a launcher for the second time, and close it; None if it cannot be opened."""
    plugin = folder / "conform_waiting.py"
    plugin.write_text(_PLUGIN, encoding="utf-8")
    plugins = Plugins(files=(str(plugin),))
    try:
        launcher = make(case.registry, "launcher", node, kind=Launcher)
        launcher.open(Plugins())
    except ParibusError:
        yield None
        return
    launcher.close()
    launcher.open(plugins)
    session = Session(case, launcher, folder, plugins)
    try:
        yield session
    finally:
        launcher.close()
        session.kill_jobs()
