"""The slot `launcher`: where trials run."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from paribus.slots.component import Component


class Job(NamedTuple):
    """One trial to be run: its identity, its folder, and its resolved spec as JSON."""

    identity: str
    folder: str
    spec: str


class Ended(NamedTuple):
    """How the process of a job ended. What the trial itself came to stands in its record."""

    identity: str
    code: int | None  # exit code; None: ended by a signal
    signal: int | None = None
    timed_out: bool = False


class Launcher(Component, ABC):
    """Runs jobs, each in a process of its own, and says how each process ended."""

    @abstractmethod
    def run(self, jobs: Sequence[Job], work: Callable[[Job], int], *, at_once: int) -> Iterator[Ended]:
        """Runs `work` for every job, `at_once` at a time; a process that dies ends its own job and no other.

        Closing the iterator stops what still runs: first asked (SIGTERM), then killed.
        """
