"""Trials that begin from others: when they may start, and what becomes of them where there is nothing to begin from."""

from __future__ import annotations

from collections.abc import Mapping

from paribus.studies.outcomes import Outcome
from paribus.studies.store import State, Store, Trial


def barred(trial: Trial, trials: Mapping[str, Trial], store: Store) -> Outcome | None:
    """What becomes of a trial that begins from one that has ended, if there is no model; None where there is one.

    A fine-tuning of what diverged has diverged, and of what failed has failed: neither is a gap in a table.
    """
    if not trial.begins:
        return None
    record = store.record(trial.begins)
    state: State = "failed"
    why = "it left neither a record nor a reason"
    if record is not None:
        state, why = record["result"]["state"], ""
        if state == "done":
            return None
    elif (failure := store.failure(trial.begins)) is not None:
        state, why = failure["state"], failure["why"]
    before = trials.get(trial.begins)
    what = f"it begins from {before.named if before else trial.begins}, which came to `{state}`"
    return Outcome(state, f"{what}: {why}" if why else what)
