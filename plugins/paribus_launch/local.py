"""On this machine."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, final

from paribus import ForkServer, Job, Launcher, LauncherEvent, Plugins, Range


@final
class Local(Launcher):
    """Each trial in a process of its own on this machine, forked from one that has already imported everything."""

    def __init__(
        self,
        *,
        fork: Annotated[bool, "fork trials; if not, each imports everything anew, which takes seconds"] = True,
        per_gpu: Annotated[int, "trials at a time on each GPU, where there are any", Range(1)] = 1,
    ) -> None:
        self._zygote = ForkServer(fork=fork)
        self._per_gpu = per_gpu

    def at_once(self, cores: int, gpus: int) -> int:
        return self._per_gpu * gpus or cores

    def open(self, plugins: Plugins) -> None:
        self._zygote.open(plugins)

    def start(self, job: Job) -> None:
        self._zygote.start(job)

    def news(self, seconds: float) -> Sequence[LauncherEvent]:
        return self._zygote.news(seconds)

    def stop(self, name: str, signal: int) -> None:
        self._zygote.stop(name, signal)

    def close(self) -> None:
        self._zygote.close()
