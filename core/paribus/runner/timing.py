"""Timing of training and inference: all variants in turns, alone on the machine, in one job after the trials.

The results are a document in the store, `timing.json`, and not part of any record. Two step times are compared by the
median of their ratios over interleaved rounds.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Mapping, Sequence
from typing import Any, Final

from paribus.errors import EXIT_OK
from paribus.planning.api import PlannedStudy
from paribus.planning.plan import first_step
from paribus.planning.settings import Setting
from paribus.runner.processes import plugin_arguments
from paribus.runner.progress import Event, OnEvent
from paribus.runner.signals import StopRequest
from paribus.runner.worker import TIMING_FILE, WorkerRequest, gpu_count
from paribus.slots.launcher import Job, JobEnded, Launcher, Plugins
from paribus.storage.atomic import DamagedError, make_folder, read_json
from paribus.storage.store import Store, Trial

LOG: Final = "timing.log"
MAX_SECONDS: Final = 2.0  # for the training steps of each variant
MIN_SECONDS: Final = 0.25
TRAINING_SHARE: Final = 0.1  # limit of the time of the pass, as a share of the training time
GROUP_SIZE: Final = 6  # variants that take turns with one baseline, and are in memory at a time
WITH_INFERENCE: Final = 1.5  # time of the whole pass, as a multiple of that of the training steps
SETUP_SECONDS: Final = 120.0  # to build the models
COMPILE_SECONDS: Final = 60.0  # for each model that is compiled


def timing_document(store: Store) -> dict[str, Any] | None:
    """Return the results of the last pass; None if there are none, or if they are damaged."""
    path = store.root / TIMING_FILE
    try:
        return read_json(path) if path.is_file() else None
    except DamagedError:
        return None


def timing_plan(planned: PlannedStudy, *, requested: bool | None = None) -> dict[str, Any]:
    """Return the specs to time; empty if all were timed, or if the study was too short.

    `requested`: True to time them in any case, False never.
    """
    can_time = requested is not False and planned.plan.study.program is None
    groups = _groups(planned) if can_time else []
    if not groups or _all_timed(planned.store, groups, with_inference=bool(requested)):
        return {}
    variants = sum(len(group) + 1 for group in groups)
    trained = sum(map(_seconds, map(planned.store.record, planned.plan.trial_by_identity)))
    share = TRAINING_SHARE * trained / variants / WITH_INFERENCE
    seconds = MAX_SECONDS if requested else min(MAX_SECONDS, share)
    if seconds < MIN_SECONDS:
        return {}
    specs = {trial.identity: dict(first_step(trial).spec) for trial in _trials_to_time(planned).values()}
    return {"specs": specs, "groups": groups, "seconds": seconds, "inference": True}


def run_timing(
    planned: PlannedStudy,
    turns: Mapping[str, Any],
    launcher: Launcher,
    plugins: Plugins,
    on_event: OnEvent,
    stop: StopRequest,
) -> None:
    """Run the pass in a job of the open launcher; a failure is reported as a note."""
    seconds = _measured_seconds(turns)
    text = f"all variants are timed in turns, alone on the machine: about {seconds:.0f} s"
    on_event(Event(kind="note", text=text))
    ended = run_timing_job(planned.store, turns, launcher, plugins, stop)
    if ended.code != EXIT_OK:
        log = planned.store.root / LOG
        on_event(Event(kind="note", text=f"the timing pass failed: {ended.last_line or log}"))


def run_timing_job(
    store: Store, turns: Mapping[str, Any], launcher: Launcher, plugins: Plugins, stop: StopRequest
) -> JobEnded:
    """Run a pass in a job of the open launcher, and return the end of the job."""
    make_folder(store.root, files=store.files)
    request = WorkerRequest(
        store=str(store.root.parent.absolute()),
        study=store.root.name,
        identity="timing",
        spec={},
        plugins=plugin_arguments(plugins),
        timing=turns,
    )
    launcher.start(Job("timing", request.to_json(), str((store.root / LOG).absolute())))
    deadline = time.monotonic() + _setup_seconds(turns) + 4 * _measured_seconds(turns)
    stopped = 0.0  # when it got SIGTERM
    while True:
        events = launcher.poll(0.1)
        ended = next((event for event in events if isinstance(event, JobEnded) and event.name == "timing"), None)
        if ended is not None:
            return ended
        if (stop.is_requested or time.monotonic() > deadline) and not stopped:
            stopped = time.monotonic()
            launcher.stop("timing", signal.SIGTERM)
        elif stopped and time.monotonic() > stopped + 10:
            launcher.stop("timing", signal.SIGKILL)


def _finished_trial(planned: PlannedStudy, setting: Setting, variant: str) -> Trial | None:
    """Return a trial of a variant that has a record; any seed has the same step time."""
    trials = setting.trials.get((variant, planned.plan.study.metric.stage), ())
    return next((trial for trial in trials if planned.store.record(trial.identity) is not None), None)


def _trials_to_time(planned: PlannedStudy) -> dict[str, Trial]:
    """Return one trial of each variant of each setting, by identity."""
    trials = (
        _finished_trial(planned, setting, variant.name)
        for setting in planned.plan.settings
        for variant in setting.variants
    )
    return {trial.identity: trial for trial in trials if trial is not None}


def _groups(planned: PlannedStudy) -> list[list[str]]:
    """Return groups of identities that take turns: the baseline of a setting, then some variants."""
    groups: list[list[str]] = []
    for setting in planned.plan.settings:
        trials = [_finished_trial(planned, setting, variant.name) for variant in setting.variants]
        if not trials or trials[0] is None:
            continue
        baseline, *variants = dict.fromkeys(trial.identity for trial in trials if trial is not None)
        groups += [[baseline, *variants[start : start + GROUP_SIZE]] for start in range(0, len(variants), GROUP_SIZE)]
    return groups


def _all_timed(store: Store, groups: Sequence[Sequence[str]], *, with_inference: bool) -> bool:
    """Return whether all groups were timed before; earlier versions did not time inference."""
    document = timing_document(store) or {}
    if with_inference and "inference" not in document:
        return False
    pairs = {(group["baseline"], name) for group in document.get("groups", ()) for name in group["rounds"]}
    skipped = document.get("left_out", {})
    return all((group[0], name) in pairs or name in skipped for group in groups for name in group)


def _seconds(record: Mapping[str, Any] | None) -> float:
    return 0.0 if record is None else float(record["provenance"].get("training_seconds") or 0.0)


def _setup_seconds(turns: Mapping[str, Any]) -> float:
    """Return the time limit for building and compiling the models: those of each group, and a twin of its baseline."""
    names = [name for group in turns["groups"] for name in (group[0], *group)]
    compiled = sum(_may_compile(turns["specs"][name]["trainer"] or {}) for name in names)
    return float(turns.get("patience", SETUP_SECONDS)) + COMPILE_SECONDS * compiled


def _may_compile(trainer: Mapping[str, Any]) -> bool:
    """Return True if the steps of a spec are compiled here, as they are on a GPU unless the spec says otherwise."""
    requested = trainer.get("compile")
    if requested is None:
        return gpu_count() > 0 and trainer.get("accelerator", "auto") != "cpu"
    return requested is not False


def _measured_seconds(turns: Mapping[str, Any]) -> float:
    """Return the seconds of the measurement itself."""
    factor = WITH_INFERENCE if turns.get("inference") else 1.0
    return factor * float(turns["seconds"]) * sum(len(group) + 1 for group in turns["groups"])
