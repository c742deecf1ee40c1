"""The slot `launcher`: where trials run."""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import ClassVar, NamedTuple, TypeAlias

from paribus.slots.component import Component


class Plugins(NamedTuple):
    """Which plugins a process loads: as `installed()` takes them."""

    files: tuple[str, ...] = ()
    only: tuple[str, ...] | None = None
    none: bool = False


class Job(NamedTuple):
    """One process to be started."""

    name: str  # no two that run have the same
    request: str  # what it is to do: JSON, on the standard input of `command`
    log: str  # the file to which all that it prints is added

    @property
    def command(self) -> list[str]:
        """What does the job in a process that has nothing yet: seconds of imports, and then the trial."""
        return [sys.executable, "-P", "-m", "paribus.runner.worker"]


class JobStarted(NamedTuple):
    """A job's process runs: from now on its time counts."""

    name: str
    location: str  # for people: "process 4711"


class JobEnded(NamedTuple):
    """How a job's process ended. What the trial itself came to stands in its record."""

    name: str
    code: int | None  # exit code; None: ended by a signal
    signal: int | None = None
    last_line: str = ""  # the last line that it printed


class LauncherMessage(NamedTuple):
    """What the user should know, in a sentence."""

    text: str


LauncherEvent: TypeAlias = JobStarted | JobEnded | LauncherMessage


class Launcher(Component, ABC):
    """Starts a process for each job, on this machine or on others, and says how each of them ended.

    Whatever a trial does (it may crash, hang or be killed) is news of its own job, and of no other. The supervisor
    decides what runs, how many at once, for how long, and what is tried again; a launcher only carries that out:

        launcher.open(Plugins())                  # may take its time, but answers at once
        launcher.start(Job("a", order, "log.txt"))
        launcher.poll(0.2)                        # [Started("a", "process 4711")], or [] after 0.2 s
        launcher.stop("a", signal.SIGTERM)        # the trial writes a checkpoint and ends
        launcher.poll(60)                         # [Ended("a", 143)]
        launcher.close()                          # nothing that it started is left

    A launcher for a cluster is `elsewhere`: it starts a `paribus.JobProcess` on the machine that its scheduler chooses,
    whose folders are those that all machines share. One that keeps processes ready, as `paribus.ForkServer` does, loads
    `plugins` there beforehand.
    """

    is_remote: ClassVar[bool] = False  # its processes may run on other machines, which share the store's folder

    def default_jobs(self, cores: int, gpus: int) -> int:
        """How many jobs it is given at once where the user does not say; this machine has so many cores and GPUs."""
        return cores

    @abstractmethod
    def open(self, plugins: Plugins) -> None:
        """Begins to make ready for jobs that need these plugins. It does not wait."""

    @abstractmethod
    def start(self, job: Job) -> None:
        """Has a process started for the job. It does not wait."""

    @abstractmethod
    def poll(self, seconds: float) -> Sequence[LauncherEvent]:
        """What has happened since, in order; waits for the first of it, but at most so long."""

    @abstractmethod
    def stop(self, name: str, signal: int) -> None:
        """Sends a signal to a job's process: SIGTERM asks it to stop, SIGKILL ends it. One that has ended is left."""

    @abstractmethod
    def close(self) -> None:
        """Ends whatever still runs. `open` may follow."""
