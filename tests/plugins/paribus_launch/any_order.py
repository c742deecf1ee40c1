"""A plugin in one file: a launcher that starts what it is given in an order of its own, as a cluster's queue does."""

import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, final

from paribus import ForkServer, Job, JobEnded, Launcher, LauncherEvent, Plugins, Range, hookimpl


@final
class AnyOrder(Launcher):
    """Some trials at a time on this machine; of those that wait, the dice say which is next."""

    def __init__(
        self,
        *,
        dice: Annotated[int, "the seed of the order"] = 0,
        width: Annotated[int, "trials that run at a time", Range(1)] = 1,
        diary: Annotated[str, "a file to which the name of each job that is started is added"] = "",
    ) -> None:
        self._luck = random.Random(dice)
        self._width = width
        self._diary = diary
        self._zygote = ForkServer()
        self._waiting: list[Job] = []
        self._news: list[LauncherEvent] = []
        self._running: set[str] = set()

    def default_jobs(self, cores: int, gpus: int) -> int:
        return 100

    def open(self, plugins: Plugins) -> None:
        self._zygote.open(plugins)

    def start(self, job: Job) -> None:
        self._waiting.append(job)

    def poll(self, seconds: float) -> Sequence[LauncherEvent]:
        while self._waiting and len(self._running) < self._width:
            job = self._waiting.pop(self._luck.randrange(len(self._waiting)))
            self._running.add(job.name)
            self._zygote.start(job)
            if self._diary:
                with Path(self._diary).open("a") as file:
                    file.write(f"{job.name}\n")
        told, self._news = self._news, []
        news = self._zygote.poll(0.0 if told else seconds)
        self._running -= {each.name for each in news if isinstance(each, JobEnded)}
        return [*told, *news]

    def stop(self, name: str, signal: int) -> None:
        if name in self._running:
            self._zygote.stop(name, signal)
        elif any(job.name == name for job in self._waiting):
            self._waiting = [job for job in self._waiting if job.name != name]
            self._news.append(JobEnded(name, None, int(signal)))

    def close(self) -> None:
        self._zygote.close()
        for each in (self._waiting, self._news, self._running):
            each.clear()


@hookimpl
def launcher() -> Mapping[str, type[Launcher]]:
    return {"any-order": AnyOrder}
