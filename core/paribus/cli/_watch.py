"""Live table of a running study: the state of each trial, training losses as sparklines, and the time left.

It reads what the trials write into the store, so it works beside any runner and on another machine.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from statistics import fmean
from typing import TYPE_CHECKING, Final, NamedTuple, final

from paribus.cli.console import note, out
from paribus.runner.progress import MIN_PROGRESS, ProgressReader
from paribus.runner.progress_bar import duration
from paribus.storage.lock import LOCK
from paribus.storage.saved_model import RECORD
from paribus.storage.store import PROGRESS

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from paribus.planning.api import PlannedStudy
    from paribus.storage.store import Trial

MARKS: Final = {"done": "●", "running": "◐", "pending": "·", "interrupted": "◌", "not needed": "-", "diverged": "∞"}
ASCII_MARKS: Final = {"done": "#", "running": "~", "pending": ".", "interrupted": "o", "not needed": "-"}
FAILED_MARK: Final = "✗"
STYLES: Final = {"done": "green", "running": "cyan", "pending": "dim", "interrupted": "yellow", "not needed": "dim"}
LEVELS: Final = "▁▂▃▄▅▆▇█"
ASCII_LEVELS: Final = "_.-=+*%#"
BINS: Final = 24  # of a sparkline
RANGE_SHARE: Final = 0.9  # of the losses that are within the range of bars: the first ones are much higher
MAX_POINTS: Final = 512  # kept of the losses of a trial
MIN_SECONDS: Final = 1.0  # between two looks at the store
LOOK_SHARE: Final = 0.1  # of the time that looks at the store may take
OPEN: Final = frozenset({"pending", "running", "interrupted"})


class Point(NamedTuple):
    """Training loss at a step."""

    step: int
    loss: float


@final
class LossHistory:
    """Training losses of a trial, read as it writes them, and thinned out where they are many."""

    def __init__(self, reader: ProgressReader) -> None:
        self._reader = reader
        self._points: list[Point] = []
        self._stride = 1  # one of so many lines is kept
        self._lines = 0
        self.step = 0

    def update(self) -> None:
        """Read the lines that were added."""
        for line in self._reader.read():
            if not line.step:
                continue
            if line.step <= self.step:  # a later attempt, which resumes from a checkpoint
                self._points = [point for point in self._points if point.step < line.step]
            self.step = line.step
            self._lines += 1
            if line.loss is not None and self._lines % self._stride == 0:
                self._points.append(Point(line.step, line.loss))
            if len(self._points) > MAX_POINTS:
                self._points, self._stride = self._points[1::2], self._stride * 2

    def binned(self, steps: int) -> Iterator[tuple[int, float]]:
        """Yield each loss with its bin of a sparkline."""
        for step, loss in self._points:
            yield min(BINS - 1, BINS * step // max(steps, 1)), loss


@final
class StudyWatch:
    """State of a study at one look: of every trial its state and its losses."""

    def __init__(self, planned: PlannedStudy, states_of: Callable[[PlannedStudy], Mapping[str, str]]) -> None:
        self.planned = planned
        self._states_of = states_of
        self._histories: dict[str, LossHistory] = {}
        self.states: Mapping[str, str] = {}

    def look(self) -> None:
        """Read the store."""
        counted = self.counts["done"]
        self.states = self._states_of(self.planned)
        if self.counts["done"] != counted and not self.planned.plan.is_complete:
            self.planned = self.planned.replan()  # tuning adds trials
            self.states = self._states_of(self.planned)
        for trial in self.planned.plan.trials:
            if self.states[trial.identity] != "pending":
                self._history(trial).update()

    @property
    def counts(self) -> Counter[str]:
        return Counter(self.states.values())

    @property
    def has_ended(self) -> bool:
        return not any(self.counts[state] for state in OPEN)

    def variants(self) -> dict[str, list[Trial]]:
        """Return the trials of each variant, setting and stage."""
        groups: dict[str, list[Trial]] = {}
        for trial in self.planned.plan.trials:
            name = ", ".join(filter(None, (trial.variant, trial.setting, trial.stage)))
            groups.setdefault(name, []).append(trial)
        return groups

    def losses(self, trials: Sequence[Trial]) -> list[float | None]:
        """Return the mean loss of trials in each bin."""
        bins: list[list[float]] = [[] for _ in range(BINS)]
        for trial in trials:
            if trial.identity in self._histories:
                for index, loss in self._histories[trial.identity].binned(_steps(trial)):
                    bins[index].append(loss)
        means = [fmean(losses) if losses else None for losses in bins]
        last = max((index for index, mean in enumerate(means) if mean is not None), default=-1)
        for index in range(1, last):
            if means[index] is None:  # no trial wrote a line there
                means[index] = means[index - 1]
        return means

    def share(self, trial: Trial) -> float:
        """Return the finished share of the steps of a trial."""
        history = self._histories.get(trial.identity)
        return min(1.0, history.step / _steps(trial)) if history is not None and _steps(trial) else 0.0

    def seconds_left(self) -> float | None:
        """Return the time until the last trial ends with as many at a time as now; None where it is not known."""
        running = [trial for trial in self.planned.plan.trials if self.states[trial.identity] == "running"]
        waiting = self.counts["pending"] + self.counts["interrupted"]
        seconds = [value for trial in self.planned.plan.trials if (value := self._duration(trial)) is not None]
        seconds = seconds or [value for trial in running if (value := self._expected_duration(trial)) is not None]
        if not running or not seconds:
            return None
        mean = fmean(seconds)
        rest = [mean * (1 - self.share(trial)) for trial in running]
        return max([*rest, (sum(rest) + mean * waiting) / len(running)])

    def _duration(self, trial: Trial) -> float | None:
        """Return the time from the start of a finished trial to its record."""
        if self.states[trial.identity] != "done":
            return None
        folder = self.planned.store.folder(trial.identity)
        try:
            return max(0.0, (folder / RECORD).stat().st_mtime - (folder / LOCK).stat().st_mtime)
        except OSError:  # a store that was copied without its locks
            return None

    def _expected_duration(self, trial: Trial) -> float | None:
        """Return the time of a running trial by its finished share: too little if it was resumed, None at its start."""
        share = self.share(trial)
        if share < MIN_PROGRESS:
            return None
        try:
            return max(0.0, time.time() - (self.planned.store.folder(trial.identity) / LOCK).stat().st_mtime) / share
        except OSError:
            return None

    def _history(self, trial: Trial) -> LossHistory:
        if trial.identity not in self._histories:
            path = self.planned.store.folder(trial.identity) / PROGRESS
            self._histories[trial.identity] = LossHistory(ProgressReader(path, from_start=True))
        return self._histories[trial.identity]


def watch(planned: PlannedStudy, states_of: Callable[[PlannedStudy], Mapping[str, str]]) -> StudyWatch:
    """Show a study until all of its trials have ended, or the user presses Ctrl-C."""
    from rich.console import Console
    from rich.live import Live

    study, console = StudyWatch(planned, states_of), Console()
    try:
        if not console.is_interactive:
            _print_changes(study)
            return study
        with Live(console=console, auto_refresh=False) as live:
            for _ in _looks(study):
                live.update(watch_table(study, console), refresh=True)
    except KeyboardInterrupt:  # the way to leave it
        out()
    return study


def _looks(study: StudyWatch) -> Iterator[None]:
    """Yield after each look at the store, until the study has ended."""
    while True:
        start = time.monotonic()
        study.look()
        yield
        if study.has_ended:
            return
        time.sleep(max(MIN_SECONDS, (time.monotonic() - start) / LOOK_SHARE))


def _print_changes(study: StudyWatch) -> None:
    """Print a line whenever the state of a trial has changed, for a log."""
    previous: Counter[str] | None = None
    for _ in _looks(study):
        if study.counts != previous:
            previous = study.counts
            note(summary(study))


def summary(study: StudyWatch) -> str:
    """Return the number of trials in each state, and the time left."""
    counts = ", ".join(f"{count} {state}" for state, count in study.counts.most_common())
    seconds = study.seconds_left()
    if seconds is not None:
        return f"{counts}; about {duration(seconds)} left"
    idle = not study.has_ended and not study.counts["running"]
    return f"{counts}; no trial is running" if idle else counts


def watch_table(study: StudyWatch, console: Console) -> Table:
    """Return a row for each variant: a mark for each trial, the losses during training, and the last loss."""
    from rich.table import Table
    from rich.text import Text

    plain = console.options.ascii_only
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), caption=summary(study), caption_justify="left")
    for head in (study.planned.name, "trials", "training loss", "now"):
        table.add_column(head, no_wrap=head != study.planned.name, justify="right" if head == "now" else "left")
    groups = study.variants()
    losses = {name: study.losses(trials) for name, trials in groups.items()}
    known = [loss for values in losses.values() for loss in values if loss is not None]
    for name, trials in groups.items():
        marks = Text()
        for trial in trials:
            state = study.states[trial.identity]
            mark = (ASCII_MARKS if plain else MARKS).get(state, "x" if plain else FAILED_MARK)
            marks.append(mark, STYLES.get(state, "bold magenta"))
        last = next((loss for loss in reversed(losses[name]) if loss is not None), None)
        now = "" if last is None else f"{last:.3f}"
        table.add_row(Text(name), marks, sparkline(losses[name], known, ASCII_LEVELS if plain else LEVELS), now)
    return table


def sparkline(values: Sequence[float | None], known: Sequence[float], levels: str = LEVELS) -> str:
    """Return values as bars on the range of most known ones; a value that is not known is blank."""
    finite = sorted(value for value in known if math.isfinite(value)) or [0.0]
    low, high = finite[0], finite[int(RANGE_SHARE * (len(finite) - 1))]
    size = (high - low) or 1.0
    top = len(levels) - 1
    return "".join(
        " " if value is None or not math.isfinite(value) else levels[round(top * min((value - low) / size, 1.0))]
        for value in values
    )


def _steps(trial: Trial) -> int:
    """Return the last step of a trial; 0 for a budget of time."""
    steps = (trial.spec.get("trainer") or {}).get("max_steps")
    return steps if isinstance(steps, int) and steps > 0 else 0
