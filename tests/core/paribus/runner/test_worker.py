"""The worker of a trial, run in this process."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import paribus.runner.progress
import paribus.train.trial
from paribus.errors import EXIT_INTERRUPTED, EXIT_OK, EXIT_PLUGIN, EXIT_SPEC, EXIT_STORE
from paribus.registry import Registry
from paribus.runner.outcomes import EXIT_LOCKED, EXIT_RETRY
from paribus.runner.processes import process_environment
from paribus.runner.progress import ProgressReader
from paribus.runner.signals import StopRequest
from paribus.runner.worker import WorkerRequest, run_request
from paribus.specs import resolved
from paribus.storage.atomic import FILES
from paribus.storage.store import FAILURE, PROGRESS, Store, Trial
from paribus.train.trial_options import TrialOptions

MakeTrial = Callable[..., Trial]


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path, "study")


def request_for(store: Store, trial: Trial, **over: Any) -> WorkerRequest:
    store.create_folder(trial)
    return WorkerRequest(store=str(store.root.parent), study="study", identity=trial.identity, spec=trial.spec, **over)


def test_a_request_survives_json(store: Store, trial: MakeTrial) -> None:
    options = TrialOptions(checkpoint_steps=3, loggers=({"name": "csv"},))
    order = request_for(store, trial(), is_rehearsal=True, options=options, plugins={"plugins": ["a.py"]})
    assert WorkerRequest.from_json(order.to_json()) == order


def test_a_request_writes_a_record_and_progress(store: Store, trial: MakeTrial, registry: Registry) -> None:
    request = request_for(store, trial())
    progress = ProgressReader(store.folder("base-0") / PROGRESS)
    assert run_request(request, registry, stop=StopRequest()) == EXIT_OK
    assert store.state("base-0") == "done"
    assert [line.step for line in progress.read()][-1] == 8


@pytest.mark.thorough
def test_a_trial_that_ends_after_a_time_writes_progress_at_intervals(
    store: Store, trial: MakeTrial, registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(paribus.train.trial, "DEFAULT_STEPS", 1)  # the last step of a trial without any limit
    monkeypatch.setattr(paribus.runner.progress, "WRITE_SECONDS", 1e9)
    timed = trial()
    timed.spec["trainer"].update(max_steps=None, max_time={"seconds": 0.2})
    progress = ProgressReader(store.folder("base-0") / PROGRESS)
    assert run_request(request_for(store, timed), registry, stop=StopRequest()) == EXIT_OK
    assert [line.step for line in progress.read()] == [1]


def test_a_model_of_pairs_writes_when_it_is_measured(store: Store, trial: MakeTrial, registry: Registry) -> None:
    sizes = ("dims.width=16", "dims.layers=1", "dims.heads=2", "data.batch=4", "trainer.max_steps=1")
    pairs = ("corpus={name: dates, pairs: 40, held_out: 8}", "measure=[{name: translation, scores: []}]")
    spec = resolved("transformer-tiny", *sizes, *pairs, registry=registry)
    assert run_request(request_for(store, replace(trial(), spec=spec)), registry, stop=StopRequest()) == EXIT_OK
    record = store.record("base-0")
    assert record is not None
    assert record["result"]["metrics"]["val/translation/pairs"] == 8


def test_a_trial_with_a_record_is_not_run(store: Store, trial: MakeTrial, registry: Registry) -> None:
    order = request_for(store, trial())
    run_request(order, registry, stop=StopRequest())
    previous = (store.folder("base-0") / "record.json").read_bytes()
    assert run_request(order, registry, stop=StopRequest()) == EXIT_OK
    assert (store.folder("base-0") / "record.json").read_bytes() == previous


def test_a_locked_trial_is_not_run(
    store: Store, trial: MakeTrial, registry: Registry, capfd: pytest.CaptureFixture[str]
) -> None:
    order = request_for(store, trial())
    with store.lock("base-0"):
        assert run_request(order, registry, stop=StopRequest()) == EXIT_LOCKED
    assert f"locked by process {os.getpid()} on " in capfd.readouterr().err
    assert not (store.folder("base-0") / FAILURE).exists()


def test_a_failed_trial_writes_its_reason_and_can_run_again(
    store: Store, trial: MakeTrial, registry: Registry, capfd: pytest.CaptureFixture[str]
) -> None:
    broken = trial(norm={"name": "nobody"})
    assert run_request(request_for(store, broken), registry, stop=StopRequest()) == EXIT_SPEC
    failure = store.failure("base-0")
    assert failure is not None
    assert failure["code"] == EXIT_SPEC
    assert "nobody" in failure["reason"]
    output = capfd.readouterr().err
    assert "Traceback" in output
    assert output.splitlines()[-1] == failure["reason"]
    assert run_request(request_for(store, trial()), registry, stop=StopRequest()) == EXIT_OK
    assert store.failure("base-0") is None


def test_a_stop_request_interrupts_a_trial(store: Store, trial: MakeTrial, registry: Registry) -> None:
    stop = StopRequest()
    stop.request(2)
    assert run_request(request_for(store, trial()), registry, stop=stop) == EXIT_INTERRUPTED
    assert store.state("base-0") == "interrupted"
    assert run_request(request_for(store, trial()), registry, stop=StopRequest()) == EXIT_OK


def test_on_a_full_disk_the_reason_is_printed(
    store: Store, trial: MakeTrial, registry: Registry, capfd: pytest.CaptureFixture[str]
) -> None:
    def full(name: str) -> None:
        if name == "create":
            raise OSError(28, os.strerror(28))

    order = request_for(store, trial(), options=TrialOptions(checkpoint_steps=2))
    assert run_request(order, registry, stop=StopRequest(), files=FILES.with_callback(full)) == EXIT_RETRY
    assert store.failure("base-0") is None
    last_line = capfd.readouterr().err.splitlines()[-1]
    assert "step-00000002.safetensors" in last_line
    assert "bytes could not be written: No space left on device" in last_line


def test_a_missing_folder_is_a_store_error(store: Store, trial: MakeTrial, registry: Registry) -> None:
    order = request_for(store, trial())
    for path in store.folder("base-0").iterdir():
        path.unlink()
    store.folder("base-0").rmdir()
    assert run_request(order, registry, stop=StopRequest()) == EXIT_STORE


@pytest.mark.thorough
def test_a_new_process_needs_only_the_request(store: Store, trial: MakeTrial, tmp_path: Path) -> None:
    order = request_for(store, trial(), plugins={"plugins": [str(tmp_path / "mine.py")]})
    (tmp_path / "mine.py").write_text("raise ValueError('broken plugin')")
    ended = subprocess.run(
        [sys.executable, "-P", "-m", "paribus.runner.worker"],
        input=order.to_json(),
        env=process_environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == EXIT_PLUGIN
    assert "broken plugin" in ended.stderr.splitlines()[-1]
    failure = store.failure("base-0")
    assert failure is not None
    assert "broken plugin" in failure["reason"]
