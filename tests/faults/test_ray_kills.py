"""kill -9 of trials on Ray, and of the workers that run them, at random moments."""

from __future__ import annotations

import os
import random
import signal
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from paribus.registry import Registry
from paribus.runner.jobs import RunOptions
from paribus.runner.progress import Event
from paribus.runner.scheduler import run_trials
from paribus.slots.launcher import Plugins
from paribus.storage.atomic import canonical_json
from paribus.storage.store import Store, Trial
from paribus.train.trial import TrialContext, run_trial
from paribus.train.trial_options import TrialOptions
from paribus_launch.ray import Ray

STEPS = 300
KILLS = 10
LATEST = 12.0  # seconds from a start to its kill: some fall into imports, some into steps

MakeTrial = Callable[..., Trial]
Property = Callable[[str, object], None]


@pytest.mark.faults
@pytest.mark.held("D4", "D8")
@pytest.mark.timeout(1800)  # each of its processes imports torch anew
@pytest.mark.filterwarnings("default")  # warnings of Ray itself
def test_trials_killed_ten_times_on_ray_have_the_same_results(
    trial: MakeTrial, registry: Registry, tmp_path: Path, record_property: Property
) -> None:
    pytest.importorskip("ray", reason="ray is not installed: pip install 'paribus[ray]'")
    trials = [trial(seed=seed, steps=STEPS) for seed in (0, 1)]
    expected = []
    for item in trials:
        (tmp_path / item.identity).mkdir()
        expected.append(
            canonical_json(run_trial(item.spec, registry, TrialContext("x", tmp_path / item.identity))["result"])
        )
    rng = random.Random(20_261)
    kills: list[str] = []

    def kill_later(event: Event) -> None:
        if event.kind == "started" and len(kills) < KILLS:
            pid, victim = int(event.text.split()[1]), rng.choice(["process", "worker"])
            threading.Timer(rng.uniform(0.0, LATEST), kill_process, (pid, victim, kills)).start()

    launcher = Ray(cpus=0.5)
    launcher.open(Plugins())
    try:
        options = RunOptions(jobs=2, retries=10_000, rehearse=False, trial=TrialOptions(checkpoint_steps=1))
        for number in range(KILLS):  # a fast machine finishes before enough kills, and starts a new study
            store = Store(tmp_path, f"study-{number}")
            run_trials(trials, store, launcher=launcher, options=options, on_event=kill_later)
            records = [store.record(item.identity) for item in trials]
            assert [canonical_json(record["result"]) for record in records if record is not None] == expected
            if len(kills) >= KILLS:
                break
    finally:
        launcher.close()
    assert len(kills) >= KILLS
    assert set(kills) == {"process", "worker"}
    record_property("kill -9 survived", len(kills))


def kill_process(pid: int, victim: str, kills: list[str]) -> None:
    """Kill a trial's process or its Ray worker; its pid may have been reused, so other processes are left alone."""
    with suppress(OSError):
        if b"paribus" not in Path(f"/proc/{pid}/cmdline").read_bytes():
            return
        worker = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
        if victim == "worker" and b"ray::" not in Path(f"/proc/{worker}/cmdline").read_bytes():
            return
        os.kill(pid if victim == "process" else worker, signal.SIGKILL)
        kills.append(victim)
