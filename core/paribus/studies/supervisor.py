"""The supervisor: keeps processes running until every trial has ended, and decides what is tried again.

Whatever one trial does, the others go on. All that is known here is on disk as well, so a supervisor that was killed is
replaced by running the same again.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path

from paribus.durable import make_folder
from paribus.slots.launcher import Launcher, Plugins
from paribus.studies import rehearsal
from paribus.studies.events import Event, OnEvent, unwatched
from paribus.studies.rules import Rules
from paribus.studies.signals import Stop
from paribus.studies.store import Store, Trial
from paribus.studies.supervision import Supervision

__all__ = ["Event", "Rules", "run_trials"]


def run_trials(
    trials: Sequence[Trial],
    store: Store,
    *,
    launcher: Launcher,
    plugins: Plugins = Plugins(),
    rules: Rules = Rules(),
    on_event: OnEvent = unwatched,
    stop: Stop | None = None,
    resume: str = "",
) -> None:
    """Runs what has no record yet, in the order given. What became of each trial is then in the store.

    The launcher is open, and stays so. `stop` is asked to stop by signals (see `catching`); then this raises an
    `InterruptedStudyError` with the command that resumes. Trials that others still run at the end are a `StoreError`.
    """
    shared = store.root if launcher.elsewhere else None
    if shared is not None:
        make_folder(shared, files=store.files)
    with tempfile.TemporaryDirectory(prefix="paribus-" if shared is None else ".rehearsal-", dir=shared) as spare:
        supervisor = Supervision(store, Store(Path(spare), rehearsal.STUDY), launcher, plugins, rules, on_event)
        supervisor.stop = stop or Stop()
        supervisor.resume = resume
        try:
            supervisor.run(trials)
        finally:
            supervisor.end()
