"""Match variants on time: measure training steps before the trials run, in one runner of the study."""

from __future__ import annotations

import math
import signal
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any, Final

from paribus.errors import EXIT_OK, ParibusError, Problem, SpecError, join_names
from paribus.planning.api import PlannedStudy
from paribus.planning.identity import ComponentCode
from paribus.planning.match_budget import FOLDER, match_key, match_path
from paribus.planning.paired_ratio import Ratio
from paribus.planning.plan import first_step
from paribus.planning.settings import Setting
from paribus.planning.variants import resolve
from paribus.runner.match_time_search import (
    FINAL_SECONDS,
    MAX_PASSES,
    SEARCH_SECONDS,
    MatchTask,
    MeasurePass,
    TimeMatch,
    search_matches,
)
from paribus.runner.progress import Event, OnEvent
from paribus.runner.signals import InterruptedStudyError, StopRequest
from paribus.runner.timing import LOG, run_timing_job
from paribus.slots.launcher import Launcher, Plugins
from paribus.specs.resolve import ReadingCache
from paribus.specs.tree import get_path
from paribus.storage.atomic import make_folder, write_json
from paribus.storage.lease import POLL_SECONDS, LeaseMonitor
from paribus.storage.lock import TrialLock
from paribus.storage.store import Store, Trial
from paribus.studies.designs import BASELINE
from paribus.studies.study_keys import TIME

PASS_FILE: Final = "pass.json"
SETUP_SECONDS: Final = 3600.0  # to build the models; long, because without a match the study has no trials


def match_on_time(
    planned: PlannedStudy,
    measure: MeasurePass,
    on_event: OnEvent,
    stop: StopRequest,
    *,
    resume: str = "",
    patience: float = POLL_SECONDS,
) -> PlannedStudy:
    """Return the study with all matches on time; missing ones are measured by passes of `measure`."""
    if not _unmeasured(planned):
        return planned
    store = planned.store
    make_folder(store.root / FOLDER, files=store.files)
    with _exclusive(store, on_event, stop, resume, patience) as lock:
        planned = planned.replan()  # another runner may have measured them meanwhile
        tasks = _missing_matches(planned)
        if not tasks:
            return planned
        names = join_names((task.variant for task in tasks.values()), 8)
        text = f"matching on time: the steps of {names} are timed in turns with the baseline's, alone on the machine"
        on_event(Event(kind="note", text=text))

        def report(text: str) -> None:
            on_event(Event(kind="note", text=text))

        matches, problems = search_matches(tasks, measure, report)
        code, files = ComponentCode(planned.index), lock.fenced_files(store.files)
        for key, match in matches.items():
            write_json(match_path(store, key), _document(tasks[key], match, code), files=files)
    if problems:
        raise SpecError(*problems)
    previous, planned = planned, planned.replan()
    added = tuple(trial for trial in planned.plan.trials if trial.identity not in previous.plan.trial_by_identity)
    on_event(Event(kind="planned", added=added, text=f"matched on time: {len(added)} more trials"))
    return planned


def unsolved_matches(planned: PlannedStudy) -> Iterator[str]:
    """Yield a message for each setting whose match on time is not measured yet."""
    for setting in planned.plan.settings:
        if setting.untimed and not setting.tuned:
            match = setting.study.match
            assert match is not None
            label = f" ({setting.label})" if setting.label else ""
            count = len(setting.untimed)
            seconds = (count + 2) * (SEARCH_SECONDS * MAX_PASSES / 2 + FINAL_SECONDS)
            yield (
                f"not known yet{label}: the trials of {join_names(setting.untimed, 8)}, whose {match.by} is not "
                f"matched on time yet: `paribus run` measures it first, in about {seconds:.0f} s or more, and saves it "
                f"in {planned.store.root / FOLDER}"
            )


def earlier_measurements(planned: PlannedStudy) -> Iterator[str]:
    """Yield a message for each machine that measured a match, and what has changed since."""
    matches = (match for setting in planned.plan.settings for match in setting.matched.values())
    for measurement in dict.fromkeys(match.timing for match in matches if match.timing is not None):
        since = f", and since then {join_names(measurement.changes)}" if measurement.changes else ""
        yield f"matched on time on {measurement.machine}, {measurement.when}{since}"


def _unmeasured(planned: PlannedStudy) -> list[tuple[Setting, Trial]]:
    return [
        (setting, trial) for setting in planned.plan.settings if not setting.tuned for trial in setting.untimed.values()
    ]


def _missing_matches(planned: PlannedStudy) -> dict[str, MatchTask]:
    """Return the matches to measure, by the key of their result."""
    tasks: dict[str, MatchTask] = {}
    memory = ReadingCache()
    for setting, trial in _unmeasured(planned):
        match = setting.study.match
        assert match is not None
        base = setting.trials_of(BASELINE)[0]
        tasks[match_key(base.spec, trial.spec, match.by)] = MatchTask(
            variant=f"{trial.variant}, {setting.label}" if setting.scale else trial.variant,
            by=match.by,
            start=get_path(trial.spec, match.by),
            baseline=match_key(base.spec, base.spec, match.by),
            baseline_spec=dict(first_step(base).spec),
            make_spec=partial(_spec_with_value, planned, setting, trial, memory),
        )
    return tasks


def _spec_with_value(
    planned: PlannedStudy, setting: Setting, trial: Trial, memory: ReadingCache, value: float
) -> Mapping[str, Any]:
    """Return the spec of a variant's first step with a value of the matched option, or raise a `SpecError`."""
    study = setting.study
    assert study.match is not None
    variant = next(it for it in setting.variants if it.name == trial.variant)
    specs = resolve(study, variant, planned.index, [(study.match.by, value)], memory)
    spec = dict(first_step(replace(trial, spec=specs[study.metric.stage])).spec)
    planned.check_shapes(spec)
    return spec


def _document(task: MatchTask, match: TimeMatch, code: ComponentCode) -> dict[str, Any]:
    """Return the document of a match: its value, all values that were tried, and the machine."""
    deviations = [abs(end - 1) for end in match.twin[:3] if math.isfinite(end)]
    return {
        "on": TIME,
        "by": task.by,
        "variant": task.variant,
        "value": match.value,
        **_ratio_document(match.ratio),
        "twin": max(deviations),
        "nanoseconds": list(match.nanoseconds),
        "tried": [{"value": tried.value, **_ratio_document(tried.ratio)} for tried in match.tried],
        "code": f"{code.hash(dict(task.baseline_spec))} {code.hash(dict(task.make_spec(match.value)))}",
        **{key: match.document[key] for key in ("started", "ended", "host", "machine", "versions", "clock")},
    }


def _ratio_document(ratio: Ratio) -> dict[str, Any]:
    ends = [end if math.isfinite(end) else None for end in (ratio.low, ratio.high)]
    return {"ratio": ratio.median, "interval": ends, "rounds": ratio.rounds}


@contextmanager
def _exclusive(store: Store, on_event: OnEvent, stop: StopRequest, resume: str, patience: float) -> Iterator[TrialLock]:
    """Hold the lock of the study's matches, and wait for other runners."""
    lock, monitor = TrialLock(store.root / FOLDER, store.host), LeaseMonitor()
    expired = ""
    has_reported = False
    while not lock.try_acquire(expired):
        if stop.is_requested:
            raise InterruptedStudyError(stop.signal or signal.SIGINT, resume)
        if lock.is_remote():
            state, token = monitor.judge(lock.lease)
            expired = token if state == "expired" else ""
        if not has_reported:
            owner = lock.owner() or "another process"
            on_event(Event(kind="note", text=f"waiting for {owner}, which matches this study on time"))
            has_reported = True
        time.sleep(patience)
    with lock:
        yield lock


def measure_in_job(store: Store, launcher: Launcher, plugins: Plugins, stop: StopRequest, resume: str) -> MeasurePass:
    """Return a function that runs a measuring pass in a job of the open launcher."""

    def measure(specs: Mapping[str, Any], groups: Sequence[Sequence[str]], seconds: float) -> Mapping[str, Any]:
        turns = {
            "specs": dict(specs),
            "groups": [list(group) for group in groups],
            "seconds": seconds,
            "into": f"{FOLDER}/{PASS_FILE}",
            "patience": SETUP_SECONDS,
        }
        (store.root / FOLDER / PASS_FILE).unlink(missing_ok=True)
        ended = run_timing_job(store, turns, launcher, plugins, stop)
        if stop.is_requested:
            raise InterruptedStudyError(stop.signal or signal.SIGINT, resume)
        document = store.document(FOLDER, PASS_FILE) if ended.code == EXIT_OK else None
        if document is None:
            reason = ended.last_line or "its process left no result"
            message = f"cannot match on time, as the measurement failed: {reason}; its log: {store.root / LOG}"
            raise ParibusError(Problem(code="timing-failed", path="match", message=message))
        return document

    return measure
