"""What it costs to run a trial beyond the trial: until its process is there, and a study beside the fits in it."""

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
from paribus.runner.events import Event
from paribus.runner.fork_server import ForkServer
from paribus.runner.jobs import worker_request
from paribus.slots.launcher import Job, JobEnded, Plugins
from paribus.train.trial_options import TrialOptions

MOST_SECONDS: Final = 0.100  # from an order to the end of a process that has nothing to do
MOST_TIMES: Final = 1.05  # a study, beside the trials in it
JOBS: Final = 2
STUDY: Final = {
    "base": {"preset": "gpt-tiny", "dims.width": 32, "dims.length": 32, "data.validation": 64},
    "vary": {"position": ["rope", "none"]},
    "seeds": 4,
    "budget": {"steps": 150},  # about two seconds each
    "metric": {"name": "val/clm/loss", "better": "lower", "margin": 0.05},
}


def test_starting_a_trial(bench: Any, tmp_path: Path) -> None:
    """A trial that has its record already: its process is forked, finds that, and ends."""
    planned = paribus.study({**STUDY, "seeds": 1, "budget": {"steps": 1}}, store=tmp_path)
    paribus.run(planned)
    trial = planned.plan.trials[0]
    order = worker_request(trial, planned.store, TrialOptions()).to_json()
    forked, anew = ForkServer(), ForkServer(fork=False)
    try:
        times: dict[str, list[float]] = {}
        for name, zygote in (("forked", forked), ("started anew", anew)):
            zygote.open(Plugins())
            run = _runs(zygote, order, str(tmp_path / "log.txt"))
            run()  # the first waits for all the imports
            times[name] = [bench.once(run) if not times and at == 0 else run() for at in range(30 if not times else 3)]
    finally:
        forked.close()
        anew.close()
    bench.save(times)
    slow = estimate(times["started anew"])
    what = "from an order to the end of a process that finds its trial done"
    bench.claim(Claim("P7", what, estimate(times["forked"]), "s", limit=MOST_SECONDS, contrast=slow))


def _runs(zygote: ForkServer, order: str, log: str) -> Callable[[], float]:
    count = 0

    def run() -> float:
        nonlocal count
        count += 1
        began = time.perf_counter()
        zygote.start(Job(f"trial-{count}", order, log))
        while True:
            for news in zygote.poll(60):
                if isinstance(news, JobEnded):
                    assert news.code == 0, news
                    return time.perf_counter() - began

    return run


class Spent(NamedTuple):
    """A study's time, each beside that which its trials were at work on as many slots."""

    study: float
    empty: float  # slots without a trial, as none was left to start
    between: float  # slots between two trials: processes, files, and rehearsals that ran after the first start


@pytest.mark.parametrize("tries", [3])
def test_a_study(bench: Any, tmp_path: Path, tries: int) -> None:
    """From the start of its first trial to the end of its last, beside the time that its trials were at work."""

    def once(number: int) -> Spent:
        planned = paribus.study(STUDY, store=tmp_path / str(number))
        began: list[float] = []
        ended: list[float] = []

        def listen(event: Event) -> None:
            if event.kind in ("started", "ended"):
                (began if event.kind == "started" else ended).append(time.time())

        paribus.run(planned, jobs=JOBS, on_event=listen)
        records = [planned.store.record(trial.identity) for trial in planned.plan.trials]
        spans = [each["provenance"]["ended"] - each["provenance"]["started"] for each in records if each is not None]
        assert len(spans) == len(planned.plan.trials)
        work, slots = sum(spans), JOBS * (ended[-1] - began[0])
        empty = sum(ended[-1] - each for each in ended[-JOBS:])
        return Spent(slots / work, empty / work, (slots - work - empty) / work)

    runs = [bench.once(lambda: once(0)), *(once(number) for number in range(1, tries))]
    bench.save({f"{field} / trials": [getattr(run, field) for run in runs] for field in Spent._fields})
    note = f"{tries} runs, {JOBS} trials at a time"
    study, empty, between = (Estimate(fmean(each), min(each), max(each)) for each in zip(*runs, strict=True))
    bench.claim(Claim("P7", "a study, beside the trials in it", study, limit=MOST_TIMES, note=note))
    bench.claim(Claim("", "of that, slots of which none was left to start", empty, note=note))
    bench.claim(Claim("", "of that, between trials, and rehearsals", between, note=note))
