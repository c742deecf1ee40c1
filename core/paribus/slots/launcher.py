"""Slot `launcher`: processes of trials, on this machine or on others."""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import ClassVar, NamedTuple, TypeAlias

from paribus.slots.component import Component


class Plugins(NamedTuple):
    """Plugins that a process loads, as the arguments of `installed()`."""

    files: tuple[str, ...] = ()  # plugin files
    only: tuple[str, ...] | None = None  # names of the installed plugins to load; None: all
    none: bool = False  # load no installed plugin


class Job(NamedTuple):
    """Process to start."""

    name: str  # unique among running jobs
    request: str  # JSON for the standard input of `command`
    log: str  # file to which its output is appended
    other_environment: bool = False  # another hash seed, time zone and locale, and no variables of the user

    @property
    def command(self) -> list[str]:
        """Command of the job in a new process: seconds of imports, then the trial."""
        return [sys.executable, "-P", "-m", "paribus.runner.worker"]


class JobStarted(NamedTuple):
    """Event: the process of a job runs, and its time counts from now on."""

    name: str  # of the job
    location: str  # for the log: "process 4711"


class JobEnded(NamedTuple):
    """Event: the process of a job ended. The outcome of the trial is in its record."""

    name: str  # of the job
    code: int | None  # exit code; None: ended by a signal
    signal: int | None = None  # number of that signal
    last_line: str = ""  # last line of its output


class LauncherMessage(NamedTuple):
    """Event: a message for the user, one sentence."""

    text: str


LauncherEvent: TypeAlias = JobStarted | JobEnded | LauncherMessage  # what `Launcher.poll` returns


class Launcher(Component, ABC):
    """Launcher: starts a process for each job, on this machine or on others, and reports how each ended.

    A trial that crashes, hangs or is killed affects its own job only. The scheduler of `paribus run` decides which jobs
    run, how many at once, for how long, and which are repeated; it calls a launcher like this:

        launcher.open(Plugins())                  # prepares for jobs in the background
        launcher.start(Job("a", request, "/runs/a/log.txt"))
        launcher.poll(0.2)                        # [] after 0.2 s, or earlier [JobStarted("a", "process 4711")]
        launcher.stop("a", signal.SIGTERM)        # the trial writes a checkpoint and ends
        launcher.poll(60)                         # [JobEnded("a", 143, None, "it was stopped; …")]
        launcher.close()                          # ends every process that it started

    A launcher for a cluster sets `is_remote` and starts a `paribus.JobProcess` on the machine that its scheduler
    chooses; all machines share the folder of the store. A launcher that keeps processes ready, as the fork server does,
    loads `plugins` in them.
    """

    is_remote: ClassVar[bool] = False  # processes may run on other machines that share the folder of the store
    changes_environment: ClassVar[bool] = False  # starts a job with `other_environment` as it says, as JobProcess does

    def default_jobs(self, cores: int, gpus: int) -> int:
        """Return the default number of parallel jobs on a machine with this many cores and GPUs."""
        return cores

    @abstractmethod
    def open(self, plugins: Plugins) -> None:
        """Start to prepare for jobs that need these plugins, without waiting."""

    @abstractmethod
    def start(self, job: Job) -> None:
        """Start a process for the job, without waiting."""

    @abstractmethod
    def poll(self, seconds: float) -> Sequence[LauncherEvent]:
        """Return the events since the last call, in order; wait for the first one at most `seconds`."""

    @abstractmethod
    def stop(self, name: str, signal: int) -> None:
        """Send a signal to the process of a job, if it still runs: SIGTERM requests a stop, SIGKILL ends it."""

    @abstractmethod
    def close(self) -> None:
        """End every running process. `open` may be called again."""
