"""P7: overhead of running trials: start of a trial's process, and a study compared with its trials."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from statistics import fmean
from typing import Any, Final, NamedTuple

import pytest
from benchmarks.claims import Claim
from benchmarks.paired import Estimate, estimate

import paribus
from paribus.runner.jobs import worker_request
from paribus.runner.processes import ForkServer
from paribus.runner.progress import Event
from paribus.slots.launcher import Job, JobEnded, Plugins
from paribus.train.trial_options import TrialOptions

MAX_SECONDS: Final = 0.100  # from a request to the end of a process that has nothing to do
MAX_RATIO: Final = 1.05  # a study to its trials
JOBS: Final = 2
STUDY: Final = {
    "base": {"preset": "gpt-tiny", "dims.width": 32, "dims.length": 32, "data.validation": 64},
    "vary": {"position": ["rope", "none"]},
    "seeds": 4,
    "budget": {"steps": 150},  # about two seconds each
    "metric": {"name": "val/clm/loss", "better": "lower", "margin": 0.05},
}


def test_starting_a_trial(bench: Any, tmp_path: Path) -> None:
    """Time a process of a trial that already has its record, so that it ends at once."""
    planned = paribus.study({**STUDY, "seeds": 1, "budget": {"steps": 1}}, store=tmp_path)
    paribus.run(planned)
    trial = planned.plan.trials[0]
    request = worker_request(trial, planned.store, TrialOptions()).to_json()
    forked, spawned = ForkServer(), ForkServer(fork=False)
    try:
        times: dict[str, list[float]] = {}
        for name, server in (("forked", forked), ("started anew", spawned)):
            server.open(Plugins())
            run = _runs(server, request, str(tmp_path / "log.txt"))
            run()  # the first run waits for the imports
            times[name] = [
                bench.once(run) if not times and index == 0 else run() for index in range(30 if not times else 3)
            ]
    finally:
        forked.close()
        spawned.close()
    bench.save(times)
    slow = estimate(times["started anew"])
    claim_name = "from an order to the end of a process that finds its trial done"
    bench.claim(Claim("P7", claim_name, estimate(times["forked"]), "s", limit=MAX_SECONDS, contrast=slow))


def _runs(server: ForkServer, request: str, log: str) -> Callable[[], float]:
    count = 0

    def run() -> float:
        nonlocal count
        count += 1
        start = time.perf_counter()
        server.start(Job(f"trial-{count}", request, log))
        while True:
            for event in server.poll(60):
                if isinstance(event, JobEnded):
                    assert event.code == 0, event
                    return time.perf_counter() - start

    return run


class StudyTime(NamedTuple):
    """Time of a study and its parts, as ratios to the time of its trials."""

    study: float
    empty: float  # job slots without a trial, as none was left to start
    between: float  # job slots between two trials: processes, files, and rehearsals after the first start


@pytest.mark.parametrize("tries", [3])
def test_a_study(bench: Any, tmp_path: Path, tries: int) -> None:
    """Time a study from the start of its first trial to the end of its last, relative to the time of its trials."""

    def once(number: int) -> StudyTime:
        planned = paribus.study(STUDY, store=tmp_path / str(number))
        began: list[float] = []
        ended: list[float] = []

        def listen(event: Event) -> None:
            if event.kind in ("started", "ended"):
                (began if event.kind == "started" else ended).append(time.time())

        paribus.run(planned, jobs=JOBS, on_event=listen)
        records = [planned.store.record(trial.identity) for trial in planned.plan.trials]
        spans = [
            values["provenance"]["ended"] - values["provenance"]["started"] for values in records if values is not None
        ]
        assert len(spans) == len(planned.plan.trials)
        work, slots = sum(spans), JOBS * (ended[-1] - began[0])
        empty = sum(ended[-1] - values for values in ended[-JOBS:])
        return StudyTime(slots / work, empty / work, (slots - work - empty) / work)

    runs = [bench.once(lambda: once(0)), *(once(number) for number in range(1, tries))]
    bench.save({f"{field} / trials": [getattr(run, field) for run in runs] for field in StudyTime._fields})
    note = f"{tries} runs, {JOBS} trials at a time"
    study, empty, between = (Estimate(fmean(values), min(values), max(values)) for values in zip(*runs, strict=True))
    bench.claim(Claim("P7", "a study, beside the trials in it", study, limit=MAX_RATIO, note=note))
    bench.claim(Claim("", "of that, slots of which none was left to start", empty, note=note))
    bench.claim(Claim("", "of that, between trials, and rehearsals", between, note=note))
