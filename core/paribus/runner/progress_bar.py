"""Progress of a running study: a live bar in a terminal or a notebook, one line per trial in a log, on stderr."""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from html import escape
from typing import TYPE_CHECKING, Any, Final, final

from paribus.errors import escape_unprintable

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

    from paribus.planning.api import PlannedStudy
    from paribus.runner.progress import Event
    from paribus.storage.store import Trial

REFRESH_SECONDS: Final = 0.1


def duration(seconds: float) -> str:
    """Format seconds as `40 s`, `12 min` or `3.1 h`."""
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"


def can_show_live() -> bool:
    """Return whether stderr is a terminal, or this process a notebook: what only one line may change in."""
    from rich.console import Console

    console = Console(stderr=True)
    return console.is_interactive or console.is_jupyter


@final
class NotebookBar:
    """Bar below a cell of a notebook, which needs no widgets."""

    def __init__(self) -> None:
        from IPython.display import HTML, display  # there is none elsewhere

        self._html: Any = HTML
        self._handle: Any = display(HTML(""), display_id=True)

    def show(self, share: float, text: str) -> None:
        """Show the finished share of a study and a text."""
        bar = f'<progress value="{share:.4f}" max="1"></progress> <code>{escape(escape_unprintable(text))}</code>'
        self._handle.update(self._html(bar))


@final
class StudyProgress:
    """Display of the events of a study.

    The bar is drawn when an event arrives and not by a thread: this process may fork, and a forked child would inherit
    the locks of a thread that it does not have.
    """

    def __init__(self, planned: PlannedStudy, trials: Sequence[Trial], jobs: int) -> None:
        from paribus.runner.progress import RemainingTime

        self.planned = planned
        self.total = len(trials)
        self.remaining_time = RemainingTime(trials, jobs)
        self.running: dict[str, float] = {}  # identity -> finished share of its steps
        self.ended: Counter[str] = Counter()
        self._bar: Progress | None = None
        self._notebook: NotebookBar | None = None
        self._task: TaskID | None = None
        self._start = time.monotonic()
        self._last_refresh = 0.0
        self._has_shown_loss = False
        self._reasons: dict[str, str] = {}  # why trials ended -> the first of them

    def __enter__(self) -> StudyProgress:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

        note(f"{self.planned.name}: {self.total} of {len(self.planned.plan.trials)} trials to run")
        console = Console(stderr=True)
        if console.is_jupyter:
            self._notebook = NotebookBar()
        elif console.is_interactive:
            self._bar = Progress(
                TextColumn("{task.fields[done]}/{task.fields[trials]} trials"),
                BarColumn(),
                TimeElapsedColumn(),
                TextColumn("{task.fields[remaining]}"),
                TextColumn("{task.description}", markup=False),
                console=console,
                transient=True,
                auto_refresh=False,
            )
            self._bar.start()
            self._task = self._bar.add_task(
                "starting", total=float(self.total), done=0, trials=self.total, remaining=""
            )
        return self

    def __exit__(self, *exception: object) -> None:
        if self._bar is not None:
            self._bar.stop()
        if self._notebook is not None:
            seconds = time.monotonic() - self._start
            self._notebook.show(self._share, f"{self.done}/{self.total} trials in {duration(seconds)}")

    @property
    def _share(self) -> float:
        return min((self.done + sum(self.running.values())) / self.total, 1.0) if self.total else 1.0

    def on_event(self, event: Event) -> None:
        """Show one event."""
        self.remaining_time.on_event(event)
        self.total += len(event.added) - len(event.removed)
        if event.kind in ("note", "planned"):
            self._print(event.text)
        trial = event.trial
        if trial is not None and event.kind == "progress" and event.steps:
            self.running[trial.identity] = event.step / event.steps
            self._print_first_loss(event)
        elif trial is not None and event.kind == "ended":
            self.running.pop(trial.identity, None)
            self.ended[str(event.state)] += 1
            self._print_end(trial, event)
        elif trial is not None and event.kind == "rehearsed" and event.state is not None:
            variant = f"{trial.variant}, {trial.stage}" if trial.stage else trial.variant
            self._print(f"{variant}: its first step fails ({event.state}): {event.text}")
        self._draw(event)

    @property
    def done(self) -> int:
        """Number of trials that have ended, interrupted ones excluded."""
        return sum(count for state, count in self.ended.items() if state != "interrupted")

    def _print_first_loss(self, event: Event) -> None:
        """Print one loss to a log, which shows that training has started."""
        if event.loss is not None and not self._has_shown_loss and self._is_log:
            self._has_shown_loss = True
            note(f"step {event.step} of {event.steps}: loss {event.loss:.3f}")

    def _print_end(self, trial: Trial, event: Event) -> None:
        if event.state != "done":
            log = "" if event.state in ("interrupted", "diverged") else self.planned.store.log_hint(trial.identity)
            reason = event.text or self._divergence(trial)
            first = self._reasons.setdefault(reason, trial.label)
            shown = reason if first == trial.label else f"for the same reason as {first}"
            self._print(f"{trial.label}: {event.state}: {shown}{log}")
        elif self._is_log:
            remaining = self._remaining()
            note(f"{self.done}/{self.total} trials: {trial.label}: done{remaining and f'; {remaining}'}")

    def _remaining(self) -> str:
        seconds = self.remaining_time.seconds()
        if seconds is None or self.done == self.total:
            return ""
        condition = ", if other variants take as long" if self.remaining_time.unseen_variants else ""
        return f"about {duration(seconds)} left{condition}"

    def _divergence(self, trial: Trial) -> str:
        """Return the step of a divergence, which is in the record."""
        record = self.planned.store.record(trial.identity)
        diverged = record["result"].get("diverged") if record is not None else None
        if diverged is None:
            return ""
        last = diverged["last_loss"]
        loss = "no loss was finite" if last is None else f"the last finite loss was {last}"
        return f"at step {diverged['step']}; {loss}"

    def _print(self, text: str) -> None:
        if self._bar is not None:
            self._bar.console.print(text, markup=False, highlight=False)
        else:
            note(text)

    @property
    def _is_log(self) -> bool:
        return self._bar is None and self._notebook is None

    def _draw(self, event: Event) -> None:
        if event.kind == "progress" and time.monotonic() - self._last_refresh < REFRESH_SECONDS:
            return
        self._last_refresh = time.monotonic()
        loss = "" if event.loss is None else f" loss {event.loss:.3f}"
        label = None if event.trial is None else f"{event.trial.label}{loss}"
        if self._notebook is not None:
            texts = (f"{self.done}/{self.total} trials", self._remaining(), label or "")
            self._notebook.show(self._share, " · ".join(filter(None, texts)))
        if self._bar is None or self._task is None:
            return
        self._bar.update(
            self._task,
            total=float(self.total),
            completed=self.done + sum(self.running.values()),
            done=self.done,
            trials=self.total,
            remaining=self._remaining(),
            description=label,
        )
        self._bar.refresh()


def note(text: str) -> None:
    """Print a line to stderr. A failure to write is ignored."""
    with suppress(OSError):
        sys.stderr.write(f"{escape_unprintable(text)}\n")
        sys.stderr.flush()
