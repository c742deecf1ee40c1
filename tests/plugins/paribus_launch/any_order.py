"""Plugin with a launcher that starts jobs in random order, like a cluster's queue."""

import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, final

from paribus import ForkServer, Job, JobEnded, Launcher, LauncherEvent, Plugins, Range, hookimpl


@final
class AnyOrder(Launcher):
    """Launcher that runs a few trials at a time on this machine, in a random order."""

    def __init__(
        self,
        *,
        order_seed: Annotated[int, "seed of the order"] = 0,
        width: Annotated[int, "concurrent trials", Range(1)] = 1,
        started_log: Annotated[str, "file that lists started jobs"] = "",
    ) -> None:
        self._rng = random.Random(order_seed)
        self._width = width
        self._diary = started_log
        self._server = ForkServer()
        self._waiting: list[Job] = []
        self._events: list[LauncherEvent] = []
        self._running: set[str] = set()

    def default_jobs(self, cores: int, gpus: int) -> int:
        return 100

    def open(self, plugins: Plugins) -> None:
        self._server.open(plugins)

    def start(self, job: Job) -> None:
        self._waiting.append(job)

    def poll(self, seconds: float) -> Sequence[LauncherEvent]:
        while self._waiting and len(self._running) < self._width:
            job = self._waiting.pop(self._rng.randrange(len(self._waiting)))
            self._running.add(job.name)
            self._server.start(job)
            if self._diary:
                with Path(self._diary).open("a") as file:
                    file.write(f"{job.name}\n")
        events, self._events = self._events, []
        server_events = self._server.poll(0.0 if events else seconds)
        self._running -= {event.name for event in server_events if isinstance(event, JobEnded)}
        return [*events, *server_events]

    def stop(self, name: str, signal: int) -> None:
        if name in self._running:
            self._server.stop(name, signal)
        elif any(job.name == name for job in self._waiting):
            self._waiting = [job for job in self._waiting if job.name != name]
            self._events.append(JobEnded(name, None, int(signal)))

    def close(self) -> None:
        self._server.close()
        for collection in (self._waiting, self._events, self._running):
            collection.clear()


@hookimpl
def launcher() -> Mapping[str, type[Launcher]]:
    return {"any-order": AnyOrder}
