"""Launcher that runs trials in this process, one at a time: for classes that no other process has."""

from __future__ import annotations

import gc
import signal as signals
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Final, final

from paribus.registry import Registry
from paribus.runner.signals import StopRequest
from paribus.runner.worker import WorkerRequest, run_request
from paribus.slots.launcher import Job, JobEnded, JobStarted, Launcher, LauncherEvent, LauncherMessage, Plugins

WATCH_SECONDS: Final = 0.1


@final
class InProcessLauncher(Launcher):
    """Runs each job to its end within `poll`; a job that crashes ends this process.

    A job calls `watch` while it runs, so that the scheduler reports its progress and can stop it.
    """

    def __init__(self, registry: Registry, stop: StopRequest) -> None:
        """`stop` is the one that signals request."""
        self.watch: Callable[[], None] = lambda: None
        self._registry = registry
        self._stop = stop
        self._job_stop: StopRequest | None = None  # of the running job
        self._waiting: list[Job] = []
        self._last_line = ""
        names = ", ".join(registry.local)
        text = f"{names} exist in this process only: trials run in it, one at a time, and are not resumed in another"
        self._events: list[LauncherEvent] = [LauncherMessage(text)]

    def open(self, plugins: Plugins) -> None:
        """Do nothing: this process has loaded everything."""

    def start(self, job: Job) -> None:
        self._waiting.append(job)
        self._events.append(JobStarted(job.name, "in this process"))

    def poll(self, seconds: float) -> Sequence[LauncherEvent]:
        if self._events or not self._waiting:
            events, self._events = self._events, []
            return events
        job = self._waiting.pop(0)
        return [JobEnded(job.name, self._run(job), last_line=self._last_line)]

    def stop(self, name: str, signal: int) -> None:
        """Stop the running job at its next step, or at once; a job that has not started yet never starts."""
        waiting = [job for job in self._waiting if job.name == name]
        self._waiting = [job for job in self._waiting if job.name != name]
        self._events += [JobEnded(job.name, None, int(signal)) for job in waiting]
        if self._job_stop is not None and not waiting:
            self._job_stop.request(signal)
            if signal == signals.SIGKILL:
                raise KeyboardInterrupt

    def close(self) -> None:
        self._waiting.clear()

    def on_signal(self) -> None:
        """Handle a signal: stop the job at its next step; at once if it has not trained yet, or at a second signal."""
        if self._job_stop is not None:
            self._job_stop.request(self._stop.signal or signals.SIGINT)
            if self._stop.at_once or not self._job_stop.is_polled:
                raise KeyboardInterrupt

    def _run(self, job: Job) -> int:
        request = replace(WorkerRequest.from_json(job.request), job_slot=None)
        self._last_line = ""
        self._job_stop = StopRequest()
        last_watch = time.monotonic()

        def watch() -> None:
            nonlocal last_watch
            self._stop.poll()  # reinstalls signal handlers that Lightning replaced
            if time.monotonic() - last_watch >= WATCH_SECONDS:
                last_watch = time.monotonic()
                self.watch()

        def keep_line(line: str) -> None:
            self._last_line = line

        try:
            with _isolated_torch():
                return run_request(request, self._registry, stop=self._job_stop, watch=watch, on_last_line=keep_line)
        finally:
            self._job_stop = None
            _free_gpu_memory()


def _free_gpu_memory() -> None:
    """Free what a trial leaves on a GPU: the next trial may need all of its memory."""
    import torch

    if torch.cuda.is_initialized():
        gc.collect()  # Lightning's trainer and the model refer to each other
        torch.cuda.empty_cache()


@contextmanager
def _isolated_torch() -> Iterator[None]:
    """Use one thread, as in any other process of a trial, and keep the caller's random state."""
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with torch.random.fork_rng(devices=[]):
            yield
    finally:
        torch.set_num_threads(threads)
