"""Trials in this very process, one after the other: for classes that no other process can have."""

from __future__ import annotations

from collections.abc import Sequence

from paribus.registry import Registry
from paribus.studies.events import Event, OnEvent
from paribus.studies.failures import failure_of
from paribus.studies.signals import Stop, catching
from paribus.studies.store import Store, Trial
from paribus.train.keeper import InterruptedTrialError
from paribus.train.trial import DEFAULT_STEPS, Terms, run_trial


def run_here(trials: Sequence[Trial], store: Store, registry: Registry, on_event: OnEvent) -> None:
    """Runs what has no record; a trial that fails is that trial's state, but one that crashes ends this process."""
    names = ", ".join(registry.local)
    text = f"{names} exist in this process only: trials run in it, one at a time, and are not resumed in another"
    on_event(Event(kind="note", text=text))
    with catching(Stop()) as stop:
        for trial in trials:
            if store.record(trial.identity) is None:
                _one(trial, store, registry, on_event, stop)


def _one(trial: Trial, store: Store, registry: Registry, on_event: OnEvent, stop: Stop) -> None:
    steps = trial.spec["trainer"].get("max_steps") or DEFAULT_STEPS
    folder = store.enter(trial)
    on_event(Event(kind="started", trial=trial))

    def tell(step: int, loss: float) -> None:
        on_event(Event(kind="progress", trial=trial, step=step, steps=steps, loss=loss))

    terms = Terms(
        trial.identity,
        folder,
        asked_to_stop=lambda: stop.asked,
        tell=tell,
        note=lambda text: on_event(Event(kind="note", trial=trial, text=text)),
        hooks=registry.hook,
        files=store.files,
    )
    with store.lock(trial.identity):
        try:
            record = run_trial(trial.spec, registry, terms)
        except InterruptedTrialError:
            raise KeyboardInterrupt from None
        except Exception as error:
            failure = failure_of(error)
            store.fail(trial.identity, failure.state, failure.why)
            on_event(Event(kind="ended", trial=trial, state=failure.state, text=failure.why))
        else:
            on_event(Event(kind="ended", trial=trial, state=record["result"]["state"]))
