"""One step of every variant before the first long trial, so that a broken one is known within seconds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final

from paribus.planning.settings import TUNING
from paribus.storage.saved_model import RECORD
from paribus.storage.store import Store, Trial

STUDY: Final = "rehearsal"

TrialGroup = tuple[str, str, str]


def select_rehearsals(trials: Sequence[Trial], pending: Sequence[Trial], store: Store, jobs: int) -> list[Trial]:
    """The first pending trial of each variant, at each stage, of which no step is known to have worked.

    None, where all start at once: then they tell by themselves.
    """
    if len(pending) <= jobs and not any(trial.parent_id for trial in pending):
        return []
    tried = {trial_group(trial) for trial in trials if _has_stepped(store, trial)}
    first: dict[TrialGroup, Trial] = {}
    for trial in pending:
        if trial_group(trial) not in tried:
            first.setdefault(trial_group(trial), trial)
    return list(first.values())


def trial_group(trial: Trial) -> TrialGroup:
    """What all seeds of a variant have in common: one of them steps for all, and so does one of what is tuned."""
    setting, tuning, _ = trial.setting.partition(f"{TUNING} ")
    return trial.variant, setting + tuning, trial.stage


def is_blocked(trial: Trial, rehearsed: Trial) -> bool:
    """Whether a trial cannot be what it is to be, as one could not take its first step: other tuned values may."""
    return trial_group(trial) == trial_group(rehearsed) and trial.setting == rehearsed.setting


def first_step(trial: Trial) -> Trial:
    """The trial cut down to a step, and to one batch of the validation split; it waits for none to begin from."""
    spec: dict[str, Any] = dict(trial.spec)
    if trial.parent_id:
        began = {key: value for key, value in spec["from"].items() if key == "learned"}
        spec["from"] = began or None
    trainer = {key: value for key, value in (spec["trainer"] or {}).items() if key != "max_time"}
    spec["trainer"] = {**trainer, "max_steps": 1}
    spec["data"] = {**spec["data"], "validation": spec["data"]["batch"]}
    return replace(trial, spec=spec, parent_id="")


def _has_stepped(store: Store, trial: Trial) -> bool:
    folder = store.folder(trial.identity)
    return (folder / RECORD).is_file() or any(folder.glob("checkpoints/step-*"))
