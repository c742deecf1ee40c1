"""On a Ray cluster."""

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
from paribus_launch._library import library

MOST: Final = 256  # actors that are handed to a cluster, which lets them wait until there is room
LOOK: Final = 1.0  # seconds between an actor's looks at whether its trial has ended


@final
class Body:
    """What runs in a worker of Ray's: it starts the trial's process there, hands on signals, and says how it ended.

    Each trial is a process of its own, as everywhere: a worker that has run one has torch, its threads and its CUDA
    context in it, and would be another place for the next.
    """

    def __init__(self, job: Job, home: JobEnvironment) -> None:
        self._job = job
        self._home = home
        self._process: JobProcess | None = None
        self._began = threading.Event()

    def run(self) -> tuple[int | None, int | None, str]:
        self._process = JobProcess(self._job, self._home)
        self._began.set()
        while (ended := self._process.wait(LOOK)) is None:
            pass
        return ended.code, ended.signal, ended.last

    def where(self) -> str:
        self._began.wait()
        assert self._process is not None
        return self._process.where

    def send(self, number: int) -> None:
        self._began.wait()
        assert self._process is not None
        self._process.send(number)


@dataclass
@final
class _Actor:
    handle: Any
    began: Any  # the reference to where it runs; None once that is known
    ends: Any  # the reference to how it ended


@final
class Ray(Launcher):
    """Each trial in an actor of a Ray cluster, an existing one or one that is started on this machine for the study.

    Ray decides where and when, by what a trial reserves; what is tried again, the supervisor decides, so that a trial
    goes on from its checkpoint and no more often than was asked for: actors are never restarted.
    """

    elsewhere = True

    def __init__(
        self,
        *,
        address: Annotated[str, "the cluster's, or `auto`; empty: RAY_ADDRESS, or one is started here"] = "",
        cpus: Annotated[float, "cores that a trial reserves", Range(0)] = 1.0,
        gpus: Annotated[float, "accelerators that a trial reserves; 0.5: two trials on one", Range(0)] = 0.0,
        memory: Annotated[float, "GB that a trial reserves; 0: none", Range(0)] = 0.0,
        resources: Annotated[list[str], "what else it reserves of what the cluster names: [fast-disk=1]"] = [],  # noqa: B006  # never written to
    ) -> None:
        self._address = address
        named = [each.partition("=") for each in resources]
        self._options: dict[str, Any] = {
            "num_cpus": cpus,
            "num_gpus": gpus,
            "memory": int(memory * 1e9) or None,
            "resources": {name: float(amount or 1) for name, _, amount in named},
        }
        self._ray: Any = None
        self._ours = False
        self._home = JobEnvironment({}, "")
        self._actors: dict[str, _Actor] = {}
        self._news: list[LauncherEvent] = []

    def at_once(self, cores: int, gpus: int) -> int:
        return MOST if self._where else cores

    @property
    def _where(self) -> str:
        """The cluster that is there already, if it is to be one."""
        return self._address or os.environ.get("RAY_ADDRESS", "")

    def open(self, plugins: Plugins) -> None:
        ray = self._ray = library("ray", launcher="ray")
        self._home = JobEnvironment.here()
        self._ours = not ray.is_initialized()
        if self._ours:
            with _undisturbed():
                self._join()

    def _join(self) -> None:
        try:
            self._ray.init(**self._setting())
        except (ConnectionError, RuntimeError) as error:
            if not self._where:
                raise
            what = f"no Ray cluster that lets this process in answers at `{self._where}`"
            valid = "the address that its `ray start` printed, and the RAY_AUTH_MODE and RAY_AUTH_TOKEN of its machines"
            raise SpecError(Problem(code="unreachable", path="launcher.address", message=what, valid=valid)) from error

    def _setting(self) -> dict[str, Any]:
        """Of a cluster elsewhere, workers are told where this code lies; those that are started here know it."""
        quiet = {"log_to_driver": False, "logging_level": logging.ERROR}
        if not self._where:  # `local`, as Ray would join whatever cluster it finds on this machine, be it another's
            return {**quiet, "address": "local", "include_dashboard": False}
        path = self._home.environment["PYTHONPATH"]
        return {**quiet, "address": self._where, "runtime_env": {"env_vars": {"PYTHONPATH": path}}}

    def start(self, job: Job) -> None:
        # Concurrent calls: one runs, one waits to say where, and one hands on a signal.
        options = {**self._options, "max_restarts": 0, "max_task_retries": 0, "max_concurrency": 3}
        handle = self._ray.remote(Body).options(**options).remote(job, self._home)
        self._actors[job.name] = _Actor(handle, handle.where.remote(), handle.run.remote())

    def news(self, seconds: float) -> Sequence[LauncherEvent]:
        told, self._news = self._news, []
        waited = {actor.ends: name for name, actor in self._actors.items()}
        waited |= {actor.began: name for name, actor in self._actors.items() if actor.began is not None}
        if not waited:
            return told
        timeout = 0.0 if told else max(seconds, 0.0)
        ready, _ = self._ray.wait(list(waited), num_returns=1, timeout=timeout)
        if ready and len(waited) > 1:
            ready, _ = self._ray.wait(list(waited), num_returns=len(waited), timeout=0)
        for name in dict.fromkeys(waited[each] for each in ready):
            told += self._of(name, ready)
        return told

    def stop(self, name: str, signal: int) -> None:
        actor = self._actors.get(name)
        if actor is None:
            return
        if actor.began is None and signal != signals.SIGKILL:
            actor.handle.send.remote(int(signal))
            return
        # Killed, or no process has begun that could be asked.
        self._ray.kill(actor.handle)
        del self._actors[name]
        self._news.append(JobEnded(name, None, int(signal)))

    def close(self) -> None:
        for actor in self._actors.values():
            self._ray.kill(actor.handle)
        self._actors.clear()
        self._news.clear()
        if self._ray is not None and self._ours:
            with _undisturbed():
                self._ray.shutdown()
        self._ray = None

    def _of(self, name: str, ready: Sequence[Any]) -> Iterator[LauncherEvent]:
        """What is known of a job, of which something is ready."""
        actor = self._actors[name]
        lost = (self._ray.exceptions.RayError,)
        if actor.began in ready:
            with suppress(*lost):  # then its end says why
                yield JobStarted(name, self._ray.get(actor.began))
            actor.began = None
        if actor.ends in ready:
            del self._actors[name]
            try:
                yield JobEnded(name, *self._ray.get(actor.ends))
            except lost as error:
                # The trial's process has died with its worker, so that this is as if it had been killed.
                first = next(iter(str(error).strip().splitlines()), "")
                yield JobEnded(name, None, signals.SIGKILL, f"its worker of Ray's was lost: {first}")


@contextmanager
def _undisturbed() -> Iterator[None]:
    """Ray takes SIGTERM for itself; what it does is the study's to say."""
    main = threading.current_thread() is threading.main_thread()
    before = signals.getsignal(signals.SIGTERM)
    try:
        yield
    finally:
        if main and before is not None:
            signals.signal(signals.SIGTERM, before)
