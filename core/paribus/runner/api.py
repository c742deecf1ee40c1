"""The public way to run a study: what has no record yet, one process a trial."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from paribus.assembly.components import make
from paribus.planning.api import Loaded, Planned, study
from paribus.registry import Registry
from paribus.registry.plugin_loading import load
from paribus.runner.events import Event, OnEvent, unwatched
from paribus.runner.match_time import by_launcher, here, matched_on_time
from paribus.runner.scheduler import Rules, run_trials
from paribus.runner.signals import Stop, catching
from paribus.runner.timing import due, keep, run_timing
from paribus.runner.worker import gpus
from paribus.slots.launcher import Launcher, Plugins
from paribus.storage.store import Trial
from paribus.train.worker_pool import cores


def run(
    planned: Planned | str | Path,
    *,
    jobs: int = 1,
    registry: Registry | None = None,
    plugins: Plugins | None = None,
    on_event: OnEvent = unwatched,
    resume: str = "",
    timing: bool | None = False,
) -> Planned:
    """Runs what has no record yet, one process a trial, and returns the study, to be compared.

    `paribus.compare(paribus.run(paribus.study("quickstart"), jobs=2))`

    Classes that only this process has (`registry.with_`) cannot be sent to another: such a study runs here, trial by
    trial. `resume` is the command that an interruption tells the user to type. `timing` says whether the steps of all
    variants are timed afterwards, in turns; None: where that takes little beside the study.
    """
    if not isinstance(planned, Planned):
        planned = study(planned, registry=registry)
    store = planned.store
    rules = Rules(jobs=jobs, timeout_seconds=planned.plan.study.timeout, loggers=planned.plan.study.loggers)
    if registry is not None and registry.local:
        from paribus.runner.in_process import run_here

        some = partial(run_here, store=store, registry=registry, on_event=on_event, rules=rules, resume=resume)
        take = here(store, lambda store, turns: keep(store, turns, registry, lambda: False))
        planned = matched_on_time(planned, take, on_event, Stop(), resume=resume)
        planned = _in_turn(planned, some, on_event)
        if turns := due(planned, asked=timing):
            keep(planned.store, turns, registry, lambda: False)
        return planned
    if plugins is None:
        plugins = Plugins(files=tuple(str(path) for path in registry.files) if registry is not None else ())
    launcher = _launcher(planned)
    stop = Stop()
    run_some = partial(
        run_trials,
        store=store,
        launcher=launcher,
        plugins=plugins,
        rules=rules,
        on_event=on_event,
        stop=stop,
        resume=resume,
    )
    try:
        launcher.open(plugins)
        with catching(stop):
            take = by_launcher(store, launcher, plugins, stop, resume)
            planned = matched_on_time(planned, take, on_event, stop, resume=resume)
            planned = _in_turn(planned, run_some, on_event)
            if turns := due(planned, asked=timing):
                run_timing(planned, turns, launcher, plugins, on_event, stop)
            return planned
    finally:
        launcher.close()


def _in_turn(planned: Planned, run_some: Callable[[Sequence[Trial]], None], on_event: OnEvent = unwatched) -> Planned:
    """Runs what is known, plans again with what came of it, and runs what is known since."""
    if planned.plan.study.stops:
        _in_looks(planned, run_some, on_event)
        return planned
    run_some(planned.plan.trials)
    while True:
        following = planned.again()
        more = [trial for trial in following.plan.trials if trial.identity not in planned.plan.known]
        planned = following
        if not more:
            return planned
        on_event(Event(kind="more", more=tuple(more), text=f"what is tuned is chosen: {len(more)} trials more"))
        run_some(more)


def at_once(planned: Planned) -> int:
    """How many trials run at once, where the user does not say."""
    trainers = [trial.spec["trainer"] or {} for trial in planned.plan.trials]
    alone = all(trainer.get("accelerator") == "cpu" for trainer in trainers)
    return _launcher(planned).at_once(cores(), 0 if alone else gpus())


def _in_looks(planned: Planned, run_some: Callable[[Sequence[Trial]], None], on_event: OnEvent) -> None:
    """Runs what each look of a study asks for, one look after the other, until none asks for more."""
    from paribus.analysis.api import wanted  # above studies, as what has run is judged by what reports

    asked: set[str] = set()
    found = wanted(planned)
    while more := [trial for trial in found.trials if trial.identity not in asked]:
        run_some(more)
        asked |= {trial.identity for trial in more}
        before, found = found, wanted(planned)
        for name in found.reached:
            if name not in before.reached:
                on_event(Event(kind="note", text=f"{name}: {found.reached[name]}"))
        spared = found.spared - before.spared
        left = sum(planned.store.record(identity) is None for identity in spared)
        if left:
            on_event(Event(kind="more", steps=-left, text=f"{left} trials are not needed any more"))


def _launcher(planned: Planned) -> Launcher:
    """The launcher that the study names; only the plugin that has it is loaded, so that nothing waits for torch."""
    node = planned.plan.study.launcher
    entry = planned.index.find("launcher", node["name"])
    return make(Loaded(load(entry.door).classes), "launcher", node, kind=Launcher)
