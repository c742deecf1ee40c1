"""A preempted submitit job: checkpoint, requeue, and the record of an uninterrupted trial."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from paribus.registry import installed
from paribus.runner.worker import WorkerRequest
from paribus.slots.launcher import Job, JobEnded, LauncherEvent, Plugins
from paribus.specs.resolve import resolved
from paribus.storage.atomic import canonical_json
from paribus.storage.saved_model import RECORD
from paribus.storage.store import PROGRESS, Store, Trial
from paribus.train.trial import TrialContext, run_trial
from paribus_launch.slurm import Slurm

STEPS = 3000


def spec(folder: Path) -> dict[str, Any]:
    for number in range(12):
        (folder / f"{number}.txt").write_text(f"{number}. The cat sat on the mat. It was warm. " * (number % 3 + 4))
    sizes = ("dims.width=16", "dims.layers=1", "dims.heads=2", "dims.length=16", "data.batch=4", "data.validation=8")
    corpus = f"corpus={{name: text, path: ['{folder}/*.txt']}}"
    return resolved("gpt-tiny", *sizes, corpus, "tokenizer=bytes", f"trainer.max_steps={STEPS}", registry=installed())


def wait_for_training(folder: Path, launcher: Slurm) -> None:
    deadline = time.monotonic() + 300
    progress = folder / PROGRESS
    while not progress.exists() or '"step": 1' not in progress.read_text():
        assert time.monotonic() < deadline
        assert not any(isinstance(event, JobEnded) for event in launcher.poll(0.02)), (folder / "log.txt").read_text()


@pytest.mark.slow
@pytest.mark.faults
@pytest.mark.timeout(900)  # imports twice, on a machine that may be busy
@pytest.mark.filterwarnings("ignore::ResourceWarning")  # submitit leaves its processes to Python's collector
def test_a_preempted_trial_is_requeued_and_has_the_same_record(tmp_path: Path) -> None:
    pytest.importorskip("submitit", reason="submitit is not installed: pip install 'paribus[slurm]'")
    trial_spec = spec(tmp_path)
    store = Store(tmp_path, "study")
    folder = store.create_folder(Trial("x", "x", 0, trial_spec, {}, "code", "corpus"))
    request = WorkerRequest(store=str(tmp_path), study="study", identity="x", spec=trial_spec)
    launcher = Slurm(executor="local")
    launcher.open(Plugins())
    events: list[LauncherEvent] = []
    try:
        launcher.start(Job("x", request.to_json(), str(folder / "log.txt")))
        events += launcher.poll(0.0)
        wait_for_training(folder, launcher)
        controller = launcher._jobs["x"].job._process.pid
        (job,) = Path(f"/proc/{controller}/task/{controller}/children").read_text().split()
        os.kill(int(job), signal.SIGUSR1)
        deadline = time.monotonic() + 600
        while not any(isinstance(event, JobEnded) for event in events):
            assert time.monotonic() < deadline
            events += launcher.poll(1.0)
    finally:
        launcher.close()
    assert events[-1] == JobEnded("x", 0, None, "")
    assert any(folder.glob("checkpoints/step-*"))  # interrupted and resumed
    assert (folder / RECORD).exists()
    record = store.record("x")
    assert record is not None
    (tmp_path / "uninterrupted").mkdir()
    uninterrupted = run_trial(trial_spec, installed(), TrialContext("x", tmp_path / "uninterrupted"))
    assert canonical_json(record["result"]) == canonical_json(uninterrupted["result"])
