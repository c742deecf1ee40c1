"""Public functions that connect layers: `run` stops early by verdicts, and `compare` renders its tables."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple, final

from paribus.analysis.api import compare as compare_records
from paribus.analysis.api import pending_trials, stopping_decision, trial_to_repeat
from paribus.analysis.compare_values import compare_values as compare_numbers
from paribus.analysis.table import Columns, Table
from paribus.analysis.value_rows import ValueSource
from paribus.analysis.verdicts import Better
from paribus.planning.api import PlannedStudy, data_frame, study
from paribus.registry import Registry
from paribus.report.markdown import markdown
from paribus.report.table_views import study_grid, to_csv, without_captions
from paribus.report.terminal import table_text
from paribus.runner.in_process import InProcessLauncher
from paribus.runner.jobs import RunOptions, make_launcher
from paribus.runner.match_time import match_on_time, measure_in_job
from paribus.runner.progress import Event, OnEvent, ignore_event
from paribus.runner.progress_bar import StudyProgress, can_show_live
from paribus.runner.replay import Replay, verify_records
from paribus.runner.scheduler import run_trials
from paribus.runner.signals import StopRequest, catch_signals
from paribus.runner.timing import run_timing, timing_plan
from paribus.slots.launcher import Launcher, Plugins
from paribus.storage.store import Store, Trial
from paribus.train.trial_options import TrialOptions

if TYPE_CHECKING:
    from altair import LayerChart
    from pandas import DataFrame

PLOT_WIDTH: Final = 480  # pixels of a chart in a notebook


def run(
    planned: PlannedStudy | str | Path,
    *,
    jobs: int = 1,
    registry: Registry | None = None,
    plugins: Plugins | None = None,
    on_event: OnEvent = ignore_event,
    resume: str = "",
    timing: bool | None = False,
    repeat: bool = True,
    progress: bool | None = None,
) -> PlannedStudy:
    """Run the trials of a study that have no record yet, one process per trial, and return the study for `compare`.

    `paribus.compare(paribus.run(paribus.study("quickstart"), jobs=2))`

    Classes that exist only in this process (`registry.with_components`) cannot be sent to another one: such a study
    runs in this process, trial by trial. `registry` is by default the one that the study was planned with. `resume` is
    the command that an interrupted run shows to the user. `timing` controls the timing of training steps after the
    study; None times them where that is short compared with the study. `repeat` runs one trial of a program again after
    the study, to see whether it has the same values. `progress` shows a live bar on stderr: by default in a terminal or
    a notebook, unless `on_event` receives the events. True also prints a line per trial elsewhere, and False prints
    nothing.
    """
    if not isinstance(planned, PlannedStudy):
        planned = study(planned, registry=registry)
    if progress or (progress is None and on_event is ignore_event and can_show_live()):
        pending = pending_trials(planned)
        if pending or not planned.plan.is_complete or (repeat and trial_to_repeat(planned) is not None):
            with StudyProgress(planned, pending, jobs) as bar:
                return run(
                    planned,
                    jobs=jobs,
                    registry=registry,
                    plugins=plugins,
                    on_event=_both(on_event, bar.on_event),
                    resume=resume,
                    timing=timing,
                    repeat=repeat,
                    progress=False,
                )
    for warning in planned.warnings():
        on_event(Event(kind="note", text=f"warning: {warning}"))
    with _opened_launcher(planned, jobs, registry, plugins) as opened:
        launcher, plugins, stop = opened.launcher, opened.plugins, opened.stop
        options = RunOptions(
            jobs=opened.jobs,
            timeout_seconds=planned.plan.study.timeout,
            rehearse=planned.plan.study.program is None,
            trial=TrialOptions(loggers=planned.plan.study.loggers),
        )
        run_some = partial(
            run_trials,
            store=planned.store,
            launcher=launcher,
            plugins=plugins,
            options=options,
            on_event=on_event,
            stop=stop,
            resume=resume,
            messages=set(),
        )
        measure = measure_in_job(planned.store, launcher, plugins, stop, resume)
        planned = match_on_time(planned, measure, on_event, stop, resume=resume)
        planned = _run_planned(planned, run_some, on_event)
        if repeat and (trial := trial_to_repeat(planned)) is not None:
            text = f"{trial.label} runs again, to see whether it has the same values (--no-repeat omits it)"
            on_event(Event(kind="note", text=text))
            run_some([trial], options=replace(options, repeat=True))
        if plan := timing_plan(planned, requested=timing):
            run_timing(planned, plan, launcher, plugins, on_event, stop)
        return planned


def verify(
    planned: PlannedStudy | str | Path,
    *,
    whole: bool = False,
    jobs: int = 1,
    registry: Registry | None = None,
    plugins: Plugins | None = None,
    on_event: OnEvent = ignore_event,
    resume: str = "",
) -> list[Replay]:
    """Replay one older record of each variant of a study, and keep the records that this code computes bit for bit.

    An older record is one of the same spec and data whose engine or components have changed since. The first steps of a
    long trial are replayed, and its last ones from its latest checkpoint; all of it with `whole`.
    """
    if not isinstance(planned, PlannedStudy):
        planned = study(planned, registry=registry)
    with _opened_launcher(planned, jobs, registry, plugins) as opened:

        def run_some(trials: Sequence[Trial], store: Store, options: RunOptions) -> None:
            run_trials(
                trials,
                store,
                launcher=opened.launcher,
                plugins=opened.plugins,
                options=replace(options, jobs=opened.jobs),
                on_event=on_event,
                stop=opened.stop,
                resume=resume,
            )

        return verify_records(planned, run_some, whole=whole)


@final
class _OpenedLauncher(NamedTuple):
    """Launcher of a study that is ready for jobs."""

    launcher: Launcher
    plugins: Plugins
    stop: StopRequest
    jobs: int


@contextmanager
def _opened_launcher(
    planned: PlannedStudy, jobs: int, registry: Registry | None, plugins: Plugins | None
) -> Iterator[_OpenedLauncher]:
    """Open the launcher of a study; classes that exist only in this process run in it, one trial at a time."""
    if registry is None and isinstance(planned.classes, Registry):
        registry = planned.classes
    stop = StopRequest()
    local = None
    if registry is not None and registry.local and planned.plan.study.program is None:
        local = registry.with_plugins(planned.index.plugin_files)
    if plugins is None:
        plugins = Plugins(files=tuple(map(str, registry.files)) if registry is not None else ())
    named = (str(Path(path).resolve()) for path in plugins.files)
    plugins = plugins._replace(files=tuple(dict.fromkeys((*named, *map(str, planned.index.plugin_files)))))
    in_process = InProcessLauncher(local, stop) if local is not None else None
    launcher = in_process or make_launcher(planned)
    try:
        launcher.open(plugins)
        with catch_signals(stop, in_process.on_signal if in_process else lambda: None):
            yield _OpenedLauncher(launcher, plugins, stop, 1 if in_process else jobs)
    finally:
        launcher.close()


def _both(first: OnEvent, second: OnEvent) -> OnEvent:
    def on_event(event: Event) -> None:
        first(event)
        second(event)

    return on_event


def _run_planned(planned: PlannedStudy, run_some: Callable[[Sequence[Trial]], None], on_event: OnEvent) -> PlannedStudy:
    """Run the planned trials, then plan again with their records and run the trials that tuning added."""
    if planned.plan.study.looks:
        _run_looks(planned, run_some, on_event)
        return planned
    run_some(planned.plan.trials)
    while True:
        previous, planned = planned, planned.replan()
        added = tuple(trial for trial in planned.plan.trials if trial.identity not in previous.plan.trial_by_identity)
        if not added:
            return planned
        on_event(Event(kind="planned", added=added, text=f"tuned values are chosen: {len(added)} more trials"))
        run_some(added)


def _run_looks(planned: PlannedStudy, run_some: Callable[[Sequence[Trial]], None], on_event: OnEvent) -> None:
    """Run the trials of one look after the other, until every variant has a verdict or all its seeds."""
    started: set[str] = set()
    decision = stopping_decision(planned)
    while trials := [trial for trial in decision.trials_to_run if trial.identity not in started]:
        run_some(trials)
        started |= {trial.identity for trial in trials}
        previous, decision = decision, stopping_decision(planned)
        for variant, verdict in decision.verdicts.items():
            if variant not in previous.verdicts:
                on_event(Event(kind="note", text=f"{variant}: {verdict}"))
        skipped = decision.skipped - previous.skipped
        removed = tuple(
            trial
            for trial in planned.plan.trials
            if trial.identity in skipped and planned.store.record(trial.identity) is None
        )
        if removed:
            text = f"{len(removed)} trials are not needed any more"
            on_event(Event(kind="planned", removed=removed, text=text))


@final
class TableRenderer:
    """Prints a table as in a terminal, and shows it in a notebook, a paper, a data frame."""

    def text(self, table: Table, width: int) -> str:
        return table_text(without_captions(table, "`print(*table.caption)`"), width)

    def markdown(self, table: Table, columns: Columns) -> str:
        return markdown(table, columns=columns)

    def latex(self, table: Table, columns: Columns, width: float | None) -> str:
        from paribus.report.latex import latex

        return latex(study_grid(table, columns), table.study, width)

    def csv(self, table: Table, columns: Columns) -> str:
        return to_csv(study_grid(table).records, columns)

    def dataframe(self, table: Table) -> DataFrame:
        return data_frame(study_grid(table).records, "to_dataframe")

    def html(self, table: Table) -> str:
        from paribus.report.notebook import notebook_html

        return notebook_html(table)

    def plot(self, table: Table) -> LayerChart:
        from paribus.report.charts import forest_chart

        return forest_chart(table).properties(width=PLOT_WIDTH)


def compare(planned: PlannedStudy | str | Path, *, strict: bool = False) -> Table:
    """Return the verdict table of a study, from the records in its store.

    `strict` refuses pairs of two processors or numbers of threads, which are marked otherwise.

    `paribus.compare(paribus.run(paribus.study("quickstart"), jobs=2))`
    """
    return compare_records(planned, strict=strict).with_renderer(TableRenderer())


def compare_values(
    values: ValueSource,
    *,
    metric: str = "",
    baseline: str = "",
    better: Better | None = None,
    margin: float | None = None,
    alpha: float = 0.05,
    open_ended: bool = False,
) -> Table:
    """Return the verdict table of numbers that exist already, paired by seed.

    `paribus.compare_values("results.csv", margin=0.01)`

    `values` is a CSV, TSV or JSON-lines file, a data frame, or a list of rows, with the columns `variant`, `seed` and
    `metric`; or a mapping from variants to their values, by seed or in the order of the seeds. The baseline is the
    variant of this name: by default `baseline`, or else the first one. A value that is not finite is a diverged trial.
    Lower values are better by default; for a metric such as accuracy, `better` must be given.
    With `open_ended`, the verdicts hold at every number of seeds, so seeds may be added; their intervals are wider.
    """
    table = compare_numbers(
        values, metric=metric, baseline=baseline, better=better, margin=margin, alpha=alpha, open_ended=open_ended
    )
    return table.with_renderer(TableRenderer())
