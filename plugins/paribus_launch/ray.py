"""Ray launcher (`ray`): actors on a Ray cluster."""

from __future__ import annotations

import logging
import os
import signal as signals
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Annotated, Any, Final, final

from paribus import (
    Job,
    JobEnded,
    JobEnvironment,
    JobProcess,
    JobStarted,
    Launcher,
    LauncherEvent,
    Plugins,
    Problem,
    Range,
    SpecError,
)
from paribus_launch._optional_import import import_extra

MAX_ACTORS: Final = 256  # actors submitted at once; the cluster queues those without resources
POLL_SECONDS: Final = 1.0  # seconds between an actor's checks of its trial


@final
class TrialActor:
    """Actor that starts the trial's process on a worker, forwards signals and returns the exit status.

    Every trial is a separate process, as with other launchers: a worker that has run one has loaded torch, with its
    threads and CUDA context, and would be a different environment for the next.
    """

    def __init__(self, job: Job, home: JobEnvironment) -> None:
        self._job = job
        self._home = home
        self._process: JobProcess | None = None
        self._started = threading.Event()

    def run(self) -> tuple[int | None, int | None, str]:
        self._process = JobProcess(self._job, self._home)
        self._started.set()
        while (result := self._process.wait(POLL_SECONDS)) is None:
            pass
        return result.code, result.signal, result.last_line

    def location(self) -> str:
        self._started.wait()
        assert self._process is not None
        return self._process.location

    def send(self, number: int) -> None:
        self._started.wait()
        assert self._process is not None
        self._process.send(number)


@dataclass
@final
class _ActorHandle:
    handle: Any
    started: Any  # reference to the process description; None once it was read
    result: Any  # reference to the exit status


@final
class Ray(Launcher):
    """Ray launcher, one actor for each trial on an existing cluster or on one started for the study.

    Ray places trials by their reserved resources. Retries are decided by the scheduler of the study, so that trials
    resume from their checkpoints; Ray never restarts actors.
    """

    is_remote = True
    changes_environment = True

    def __init__(
        self,
        *,
        address: Annotated[str, "address of the cluster, or `auto`; empty: RAY_ADDRESS, or start one here"] = "",
        cpus: Annotated[float, "cores reserved for a trial", Range(0)] = 1.0,
        gpus: Annotated[float, "accelerators reserved for a trial; 0.5: two trials on one", Range(0)] = 0.0,
        memory: Annotated[float, "GB reserved for a trial; 0: none", Range(0)] = 0.0,
        resources: Annotated[list[str], "custom resources reserved for a trial: [fast-disk=1]"] = [],  # noqa: B006  # never written to
    ) -> None:
        self._address = address
        pairs = [pair.partition("=") for pair in resources]
        self._options: dict[str, Any] = {
            "num_cpus": cpus,
            "num_gpus": gpus,
            "memory": int(memory * 1e9) or None,
            "resources": {name: float(amount or 1) for name, _, amount in pairs},
        }
        self._ray: Any = None
        self._owns_cluster = False
        self._home = JobEnvironment({}, "")
        self._actors: dict[str, _ActorHandle] = {}
        self._events: list[LauncherEvent] = []

    def default_jobs(self, cores: int, gpus: int) -> int:
        return MAX_ACTORS if self._cluster_address else cores

    @property
    def _cluster_address(self) -> str:
        """Address of an existing cluster, empty to start one."""
        return self._address or os.environ.get("RAY_ADDRESS", "")

    def open(self, plugins: Plugins) -> None:
        ray = self._ray = import_extra("ray", launcher="ray")
        self._home = JobEnvironment.current()
        self._owns_cluster = not ray.is_initialized()
        if self._owns_cluster:
            with _keep_sigterm_handler():
                self._connect()

    def _connect(self) -> None:
        try:
            self._ray.init(**self._init_options())
        except (ConnectionError, RuntimeError) as error:
            if not self._cluster_address:
                raise
            message = f"could not connect to a Ray cluster at `{self._cluster_address}`"
            hint = "use the address printed by `ray start`, with the cluster's RAY_AUTH_MODE and RAY_AUTH_TOKEN"
            raise SpecError(Problem(code="unreachable", path="launcher.address", message=message, hint=hint)) from error

    def _init_options(self) -> dict[str, Any]:
        """Return the options of `ray.init`; workers of an existing cluster get this process's PYTHONPATH."""
        settings = {"log_to_driver": False, "logging_level": logging.ERROR}
        if not self._cluster_address:  # `local`: otherwise Ray joins any cluster on this machine, even another user's
            return {**settings, "address": "local", "include_dashboard": False}
        python_path = self._home.environment["PYTHONPATH"]
        return {**settings, "address": self._cluster_address, "runtime_env": {"env_vars": {"PYTHONPATH": python_path}}}

    def start(self, job: Job) -> None:
        # Concurrent calls: one runs, one waits for the start, and one forwards a signal.
        options = {**self._options, "max_restarts": 0, "max_task_retries": 0, "max_concurrency": 3}
        handle = self._ray.remote(TrialActor).options(**options).remote(job, self._home)
        self._actors[job.name] = _ActorHandle(handle, handle.location.remote(), handle.run.remote())

    def poll(self, seconds: float) -> Sequence[LauncherEvent]:
        events, self._events = self._events, []
        references = {actor.result: name for name, actor in self._actors.items()}
        references |= {actor.started: name for name, actor in self._actors.items() if actor.started is not None}
        if not references:
            return events
        timeout = 0.0 if events else max(seconds, 0.0)
        ready, _ = self._ray.wait(list(references), num_returns=1, timeout=timeout)
        if ready and len(references) > 1:
            ready, _ = self._ray.wait(list(references), num_returns=len(references), timeout=0)
        for name in dict.fromkeys(references[reference] for reference in ready):
            events += self._job_events(name, ready)
        return events

    def stop(self, name: str, signal: int) -> None:
        actor = self._actors.get(name)
        if actor is None:
            return
        if actor.started is None and signal != signals.SIGKILL:
            actor.handle.send.remote(int(signal))
            return
        # SIGKILL, or the process has not started.
        self._ray.kill(actor.handle)
        del self._actors[name]
        self._events.append(JobEnded(name, None, int(signal)))

    def close(self) -> None:
        for actor in self._actors.values():
            self._ray.kill(actor.handle)
        self._actors.clear()
        self._events.clear()
        if self._ray is not None and self._owns_cluster:
            with _keep_sigterm_handler():
                self._ray.shutdown()
        self._ray = None

    def _job_events(self, name: str, ready: Sequence[Any]) -> Iterator[LauncherEvent]:
        """Yield the events of a job that has a ready reference."""
        actor = self._actors[name]
        errors = (self._ray.exceptions.RayError,)
        if actor.started in ready:
            with suppress(*errors):  # its exit status has the reason
                yield JobStarted(name, self._ray.get(actor.started))
            actor.started = None
        if actor.result in ready:
            del self._actors[name]
            try:
                yield JobEnded(name, *self._ray.get(actor.result))
            except errors as error:
                # The trial's process died with its worker, so report it as killed.
                first_line = next(iter(str(error).strip().splitlines()), "")
                yield JobEnded(name, None, signals.SIGKILL, f"Ray worker lost: {first_line}")


@contextmanager
def _keep_sigterm_handler() -> Iterator[None]:
    """Restore the handler of SIGTERM, which Ray replaces."""
    in_main_thread = threading.current_thread() is threading.main_thread()
    handler = signals.getsignal(signals.SIGTERM)
    try:
        yield
    finally:
        if in_main_thread and handler is not None:
            signals.signal(signals.SIGTERM, handler)
