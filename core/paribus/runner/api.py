"""Run a planned study: start a process for each trial without a record, one look at the verdicts after the other."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeAlias, final

from paribus.assembly.components import make
from paribus.planning.api import Loaded, PlannedStudy
from paribus.registry import Registry
from paribus.registry.plugin_loading import load_plugin
from paribus.runner.in_process import InProcessLauncher
from paribus.runner.jobs import RunOptions
from paribus.runner.match_time import match_on_time, measure_in_job
from paribus.runner.progress import Event, OnEvent, ignore_event
from paribus.runner.scheduler import run_trials
from paribus.runner.signals import StopRequest, catch_signals
from paribus.runner.timing import run_timing, timing_plan
from paribus.runner.worker import gpu_count
from paribus.slots.launcher import Launcher, Plugins
from paribus.storage.store import Trial
from paribus.train.trial_options import TrialOptions
from paribus.train.worker_pool import cores


@final
@dataclass(frozen=True)
class StoppingDecision:
    """State of a study that stops early, judged by the records that it has."""

    trials_to_run: tuple[Trial, ...]  # trials of the next look, with the trials that they start from
    skipped: frozenset[str]  # identities of trials that no look needs
    verdicts: Mapping[str, str]  # variant -> its verdict and the number of seeds


EarlyStopping: TypeAlias = Callable[[PlannedStudy], StoppingDecision]


def run_study(
    planned: PlannedStudy,
    early_stopping: EarlyStopping,
    *,
    jobs: int = 1,
    registry: Registry | None = None,
    plugins: Plugins | None = None,
    on_event: OnEvent = ignore_event,
    resume: str = "",
    timing: bool | None = False,
) -> PlannedStudy:
    """Run the trials of a study that have no record, and return the study with the trials that tuning added.

    `early_stopping` selects the trials of a study with `stop`; `paribus.run` documents the other arguments.
    """
    store, stop = planned.store, StopRequest()
    local = registry if registry is not None and registry.local else None
    if plugins is None:
        plugins = Plugins(files=tuple(str(path) for path in registry.files) if registry is not None else ())
    in_process = InProcessLauncher(local, stop) if local is not None else None
    launcher = in_process or _launcher(planned)
    options = RunOptions(
        jobs=1 if in_process else jobs,
        timeout_seconds=planned.plan.study.timeout,
        trial=TrialOptions(loggers=planned.plan.study.loggers),
    )
    run_some = partial(
        run_trials,
        store=store,
        launcher=launcher,
        plugins=plugins,
        options=options,
        on_event=on_event,
        stop=stop,
        resume=resume,
    )
    try:
        launcher.open(plugins)
        with catch_signals(stop, in_process.on_signal if in_process else lambda: None):
            measure = measure_in_job(store, launcher, plugins, stop, resume)
            planned = match_on_time(planned, measure, on_event, stop, resume=resume)
            planned = _run_planned(planned, run_some, early_stopping, on_event)
            if plan := timing_plan(planned, asked=timing):
                run_timing(planned, plan, launcher, plugins, on_event, stop)
            return planned
    finally:
        launcher.close()


def _run_planned(
    planned: PlannedStudy, run_some: Callable[[Sequence[Trial]], None], early_stopping: EarlyStopping, on_event: OnEvent
) -> PlannedStudy:
    """Run the planned trials, then plan again with their records and run the trials that tuning added."""
    if planned.plan.study.looks:
        _run_looks(planned, run_some, early_stopping, on_event)
        return planned
    run_some(planned.plan.trials)
    while True:
        previous, planned = planned, planned.replan()
        added = tuple(trial for trial in planned.plan.trials if trial.identity not in previous.plan.trial_by_identity)
        if not added:
            return planned
        on_event(Event(kind="planned", added=added, text=f"tuned values are chosen: {len(added)} more trials"))
        run_some(added)


def default_jobs(planned: PlannedStudy) -> int:
    """How many trials run at once, where the user does not say."""
    trainers = [trial.spec["trainer"] or {} for trial in planned.plan.trials]
    alone = all(trainer.get("accelerator") == "cpu" for trainer in trainers)
    return _launcher(planned).default_jobs(cores(), 0 if alone else gpu_count())


def _run_looks(
    planned: PlannedStudy, run_some: Callable[[Sequence[Trial]], None], early_stopping: EarlyStopping, on_event: OnEvent
) -> None:
    """Run the trials of one look after the other, until every variant has a verdict or all its seeds."""
    started: set[str] = set()
    decision = early_stopping(planned)
    while trials := [trial for trial in decision.trials_to_run if trial.identity not in started]:
        run_some(trials)
        started |= {trial.identity for trial in trials}
        previous, decision = decision, early_stopping(planned)
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


def _launcher(planned: PlannedStudy) -> Launcher:
    """The launcher that the study names; only the plugin that has it is loaded, so that nothing waits for torch."""
    node = planned.plan.study.launcher
    entry = planned.index.find("launcher", node["name"])
    return make(Loaded(load_plugin(entry.source).classes), "launcher", node, kind=Launcher)
