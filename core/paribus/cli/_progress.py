"""What `paribus run` shows while a study runs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, final

from paribus.cli.console import note

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

    from paribus.planning.api import Planned
    from paribus.runner.events import Event
    from paribus.storage.store import Trial


def duration(seconds: float) -> str:
    """`40 s`, `12 min`, `3.1 h`."""
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"


def _whose(trial: Trial) -> str:
    """The trials that a first step stands for."""
    return f"{trial.variant}, {trial.stage}" if trial.stage else trial.variant


@final
class Shown:
    """The progress of a study on stderr: a bar for all of it, and a line for what ends otherwise than well."""

    def __init__(self, planned: Planned, left: Sequence[Trial], jobs: int) -> None:
        from paribus.runner.events import Remaining

        self.planned = planned
        self.left = len(left)
        self.remaining = Remaining(left, jobs)
        self.running: dict[str, float] = {}  # identity -> share of its steps
        self.ended: Counter[str] = Counter()
        self._bar: Progress | None = None
        self._task: TaskID | None = None
        self._said = False

    def __enter__(self) -> Shown:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

        console = Console(stderr=True)
        note(f"{self.planned.name}: {self.left} of {len(self.planned.plan.trials)} trials to run")
        self._bar = Progress(
            TextColumn("{task.fields[done]}/{task.fields[of]} trials"),
            BarColumn(),
            TimeElapsedColumn(),
            TextColumn("{task.fields[rest]}"),
            TextColumn("{task.description}"),
            console=console,
            transient=True,
            disable=not console.is_terminal,
        )
        self._bar.start()
        self._task = self._bar.add_task("starting", total=float(self.left), done=0, of=self.left, rest="")
        return self

    def __exit__(self, *raised: object) -> None:
        if self._bar is not None:
            self._bar.stop()

    def take(self, event: Event) -> None:
        """Shows one event."""
        trial = event.trial
        self.remaining.take(event)
        if event.kind in ("note", "more"):
            self._say(event.text)
        if event.kind == "more":
            self._more(event.more)
        if trial is None:
            return
        if event.kind == "progress" and event.steps:
            self.running[trial.identity] = event.step / event.steps
            self._first_metric(event)
        elif event.kind == "ended":
            self.running.pop(trial.identity, None)
            self.ended[str(event.state)] += 1
            self._end(event)
        elif event.kind == "rehearsed" and event.state is not None:
            self._say(f"{_whose(trial)}: its first step fails ({event.state}): {event.text}")
        self._draw(event)

    def _more(self, trials: Sequence[Trial]) -> None:
        self.left += len(trials)
        self.remaining.add(trials)
        if self._bar is not None and self._task is not None:
            self._bar.update(self._task, total=float(self.left), of=self.left)

    @property
    def done(self) -> int:
        """How many trials need not be run again."""
        return sum(count for state, count in self.ended.items() if state != "interrupted")

    def _first_metric(self, event: Event) -> None:
        """Without a terminal there is no bar; that it goes forward is still said."""
        if event.loss is not None and not self._said and self._bar is not None and self._bar.disable:
            self._said = True
            note(f"step {event.step} of {event.steps}: loss {event.loss:.3f}")

    def _end(self, event: Event) -> None:
        assert event.trial is not None
        if event.state != "done":
            log = "" if event.state in ("interrupted", "diverged") else self.planned.store.logged(event.trial.identity)
            self._say(f"{event.trial.named}: {event.state}: {event.text or self._diverged(event.trial)}{log}")
        elif self._bar is not None and self._bar.disable:
            rest = f"; {found}" if (found := self._rest()) else ""
            note(f"{self.done}/{self.left} trials: {event.trial.named}: done{rest}")

    def _rest(self) -> str:
        """How long it will go on, as far as anybody can tell."""
        seconds = self.remaining.seconds()
        if seconds is None or self.done == self.left:
            return ""
        unseen = self.remaining.unseen
        guess = ", if what has not run yet is like the others" if unseen else ""
        return f"about {duration(seconds)} left{guess}"

    def _diverged(self, trial: Trial) -> str:
        """Where, which its record says."""
        record = self.planned.store.record(trial.identity)
        found = record["result"].get("diverged") if record is not None else None
        return "" if found is None else f"at step {found['step']}; the last finite loss was {found['last']}"

    def _say(self, text: str) -> None:
        if self._bar is not None and not self._bar.disable:
            self._bar.console.print(text, markup=False, highlight=False)
        else:
            note(text)

    def _draw(self, event: Event) -> None:
        if self._bar is None or self._task is None or event.trial is None:
            return
        loss = "" if event.loss is None else f" loss {event.loss:.3f}"
        self._bar.update(
            self._task,
            completed=self.done + sum(self.running.values()),
            done=self.done,
            rest=self._rest(),
            description=f"{event.trial.named}{loss}",
        )
