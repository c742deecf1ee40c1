"""Rehearsal: one step of every variant before the first long trial, so that errors show within seconds."""

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
    """Return the first pending trial of each variant and stage that has not made a step yet.

    Nothing is rehearsed where all pending trials start at once.
    """
    if len(pending) <= jobs and not any(trial.parent_id for trial in pending):
        return []
    stepped = {trial_group(trial) for trial in trials if _has_stepped(store, trial)}
    rehearsals: dict[TrialGroup, Trial] = {}
    for trial in pending:
        if trial_group(trial) not in stepped:
            rehearsals.setdefault(trial_group(trial), trial)
    return list(rehearsals.values())


def trial_group(trial: Trial) -> TrialGroup:
    """Return a key that all seeds and tuning candidates of a variant share: one of them is rehearsed for all."""
    setting, tuning, _ = trial.setting.partition(f"{TUNING} ")
    return trial.variant, setting + tuning, trial.stage


def is_blocked(trial: Trial, rehearsed: Trial) -> bool:
    """Return whether a trial is skipped after a failed rehearsal; other tuning candidates are not."""
    return trial_group(trial) == trial_group(rehearsed) and trial.setting == rehearsed.setting


def first_step(trial: Trial) -> Trial:
    """Return the trial with one step and one validation batch, without its parent."""
    spec: dict[str, Any] = dict(trial.spec)
    if trial.parent_id:
        vocabulary = {key: value for key, value in spec["from"].items() if key == "learned"}
        spec["from"] = vocabulary or None
    trainer = {key: value for key, value in (spec["trainer"] or {}).items() if key != "max_time"}
    spec["trainer"] = {**trainer, "max_steps": 1}
    spec["data"] = {**spec["data"], "validation": spec["data"]["batch"]}
    return replace(trial, spec=spec, parent_id="")


def _has_stepped(store: Store, trial: Trial) -> bool:
    folder = store.folder(trial.identity)
    return (folder / RECORD).is_file() or any(folder.glob("checkpoints/step-*"))
