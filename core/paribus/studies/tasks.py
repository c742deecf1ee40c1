"""One trial on its way through a run: waiting, and then running."""

from __future__ import annotations

import signal
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, final

from paribus.studies import rehearsal
from paribus.studies.progress import Tail
from paribus.studies.rules import Rules
from paribus.studies.store import Store, Trial
from paribus.studies.work import Order


@final
@dataclass
class Task:
    """A trial that is to be run, or only its first step."""

    trial: Trial
    rehearsed: bool = False
    tries: int = 0

    @property
    def name(self) -> str:
        return f"{rehearsal.STUDY}-{self.trial.identity}" if self.rehearsed else self.trial.identity

    @property
    def run(self) -> Trial:
        """What its process is given."""
        return rehearsal.first_step(self.trial) if self.rehearsed else self.trial


@final
@dataclass
class Running:
    """A task that has a process, or will have one as soon as the launcher can."""

    task: Task
    tail: Tail
    place: int = 0  # among those that run at once: each place has a device of its own, where there are several
    began: float | None = None
    asked: float | None = None  # when its time was over
    killed: bool = False

    def due(self, rules: Rules) -> int | None:
        """The signal to send it now, if it takes too long: the one that asks, and later the one that kills."""
        now = time.monotonic()
        if self.asked is None:
            most = rules.timeout_seconds
            if most is None or self.began is None or now - self.began <= most:
                return None
            self.asked = now
            return signal.SIGTERM
        if self.killed or now - self.asked <= rules.grace_seconds:
            return None
        self.killed = True
        return signal.SIGKILL


def _placed(trial: Trial, store: Store) -> Mapping[str, Any]:
    """The trial's spec, with the folder of the one that it begins from."""
    if not trial.begins:
        return trial.spec
    folder = str(store.folder(trial.begins).absolute())
    return {**trial.spec, "from": {**trial.spec["from"], "name": folder}}


def order_of(trial: Trial, store: Store, rules: Rules, **more: Any) -> Order:
    """What the process of a trial is told."""
    root = store.root.absolute()
    return Order(
        store=str(root.parent),
        study=root.name,
        identity=trial.identity,
        spec=_placed(trial, store),
        checkpoint_seconds=rules.checkpoint_seconds,
        checkpoint_steps=rules.checkpoint_steps,
        loggers=list(rules.loggers),
        variant=trial.named.rpartition(", seed")[0],
        **more,
    )
