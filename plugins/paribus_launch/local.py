"""Local launcher (`local`): processes on this machine."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, final

from paribus import ForkServer, Job, Launcher, LauncherEvent, Plugins, Range


@final
class Local(Launcher):
    """Local launcher, one process for each trial on this machine.

    Processes are forked from one that has already imported everything.
    """

    changes_environment = True

    def __init__(
        self,
        *,
        fork: Annotated[bool, "fork trials; otherwise each process imports everything, which takes seconds"] = True,
        per_gpu: Annotated[int, "concurrent trials on each GPU", Range(1)] = 1,
    ) -> None:
        self._zygote = ForkServer(fork=fork)
        self._per_gpu = per_gpu

    def default_jobs(self, cores: int, gpus: int) -> int:
        return self._per_gpu * gpus or cores

    def open(self, plugins: Plugins) -> None:
        self._zygote.open(plugins)

    def start(self, job: Job) -> None:
        self._zygote.start(job)

    def poll(self, seconds: float) -> Sequence[LauncherEvent]:
        return self._zygote.poll(seconds)

    def stop(self, name: str, signal: int) -> None:
        self._zygote.stop(name, signal)

    def close(self) -> None:
        self._zygote.close()
