"""A study in any order of trials, with any number of runners, interrupted or not, has one fingerprint."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.plugins.paribus_launch.conftest import TRIALS, fingerprint, write_study

from paribus.storage.store import Store

PLUGIN = Path(__file__).with_name("any_order.py")

Runner = Callable[..., "subprocess.Popen[str]"]

pytestmark = pytest.mark.timeout(900)


@pytest.fixture
def runner(folder: Path, tmp_path: Path) -> Runner:
    """Start `paribus run` of the study with a random seed; runners share a store and a cache."""

    def start(order_seed: int, width: int = 1) -> subprocess.Popen[str]:
        (tmp_path / f"{order_seed}/study").mkdir(parents=True)  # a study has the name of its folder
        launcher = {
            "name": "any-order",
            "order_seed": order_seed,
            "width": width,
            "started_log": str(tmp_path / f"{order_seed}/started"),
        }
        path = write_study(folder, launcher, to=tmp_path / f"{order_seed}/study")
        command = ["--plugin", str(PLUGIN), "run", str(path), "--store", str(tmp_path / "runs"), "--no-timing"]
        return subprocess.Popen(
            [sys.executable, "-m", "paribus", *command],
            env={**os.environ, "PARIBUS_CACHE_DIR": str(tmp_path / "cache")},
            stderr=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            start_new_session=True,
            text=True,
        )

    return start


def wait_for_end(process: subprocess.Popen[str]) -> None:
    _, errors = process.communicate(timeout=600)
    assert process.returncode == 0, errors


def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "runs", "study")


def started_trials(tmp_path: Path, order_seed: int) -> list[str]:
    """Return the started trials, in order, without rehearsals."""
    path = tmp_path / f"{order_seed}/started"
    names = path.read_text().split() if path.exists() else []
    return [name for name in names if not name.startswith("rehearsal-")]


@pytest.fixture(scope="module")
def expected(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> str:
    """Run one trial at a time, in the planned order."""
    import paribus

    tmp_path = tmp_path_factory.mktemp("planned")
    planned = paribus.study(write_study(folder, {"name": "local"}, to=tmp_path), store=tmp_path / "runs")
    paribus.run(planned, jobs=1)
    return fingerprint(planned.store)


@pytest.mark.slow
def test_any_order_of_events_gives_the_same_records(runner: Runner, tmp_path: Path, expected: str) -> None:
    orders = set()
    for order_seed, width in ((1, 1), (2, 1), (3, 1), (4, 3)):
        runs = tmp_path / "runs"
        wait_for_end(runner(order_seed, width))
        assert fingerprint(store(tmp_path)) == expected, f"order_seed {order_seed}, {width} at a time"
        orders.add(tuple(started_trials(tmp_path, order_seed)))
        runs.rename(tmp_path / f"runs-{order_seed}")
        (tmp_path / "cache").rename(tmp_path / f"cache-{order_seed}")  # the first trial encodes the corpus
    assert len(orders) == 4
    assert {len(order) for order in orders} == {TRIALS}


@pytest.mark.slow
def test_two_runners_in_different_orders_share_a_study(runner: Runner, tmp_path: Path, expected: str) -> None:
    for process in [runner(6), runner(7)]:
        wait_for_end(process)
    assert fingerprint(store(tmp_path)) == expected
    assert all(started_trials(tmp_path, order_seed) for order_seed in (6, 7))
    assert set(started_trials(tmp_path, 6)) | set(started_trials(tmp_path, 7)) == {
        record["identity"] for record in store(tmp_path).records()
    }


@pytest.mark.faults
def test_an_interrupted_runner_is_resumed_in_another_order(
    runner: Runner, tmp_path: Path, expected: str, record_property: Callable[[str, object], None]
) -> None:
    rng = random.Random(5)
    signals_sent: list[int] = []
    other_runner = None
    for order_seed, number in enumerate((signal.SIGKILL, signal.SIGTERM, signal.SIGKILL, signal.SIGKILL), start=10):
        process = runner(order_seed, 2)
        wait_for_start(process, tmp_path, order_seed)
        time.sleep(rng.uniform(0.0, 0.5))
        if process.poll() is None:  # unless another runner finished first
            os.kill(process.pid, number)
            signals_sent.append(number)
        process.communicate(timeout=120)
        if len(signals_sent) == 2:
            other_runner = runner(8)  # not interrupted
    assert other_runner is not None, signals_sent
    wait_for_end(other_runner)
    assert fingerprint(store(tmp_path)) == expected
    record_property("kill -9 survived", signals_sent.count(signal.SIGKILL))


def wait_for_start(process: subprocess.Popen[str], tmp_path: Path, order_seed: int) -> None:
    """Wait until the runner starts a trial or ends."""
    end = time.monotonic() + 300
    while not started_trials(tmp_path, order_seed) and process.poll() is None:
        assert time.monotonic() < end
        time.sleep(0.02)
