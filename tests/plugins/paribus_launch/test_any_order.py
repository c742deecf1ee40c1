"""A study whose trials run in any order, by any number of runners, whole or cut: one fingerprint."""

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
from tests.plugins.paribus_launch.conftest import TRIALS, fingerprint, written

from paribus.storage.store import Store

PLUGIN = Path(__file__).with_name("any_order.py")

Runner = Callable[..., "subprocess.Popen[str]"]

pytestmark = pytest.mark.timeout(900)


@pytest.fixture
def runner(folder: Path, tmp_path: Path) -> Runner:
    """Starts `paribus run` of the study, with dice of its own; all share a store, and a cache that is empty yet."""

    def start(dice: int, width: int = 1) -> subprocess.Popen[str]:
        (tmp_path / f"{dice}/study").mkdir(parents=True)  # a study has the name of its folder
        how = {"name": "any-order", "dice": dice, "width": width, "diary": str(tmp_path / f"{dice}/diary")}
        path = written(folder, how, to=tmp_path / f"{dice}/study")
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


def ended(process: subprocess.Popen[str]) -> None:
    _, said = process.communicate(timeout=600)
    assert process.returncode == 0, said


def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "runs", "study")


def diary(tmp_path: Path, dice: int) -> list[str]:
    """The trials that were started, in order, without their rehearsals."""
    path = tmp_path / f"{dice}/diary"
    names = path.read_text().split() if path.exists() else []
    return [name for name in names if not name.startswith("rehearsal-")]


@pytest.fixture(scope="module")
def expected(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> str:
    """One trial at a time, in the order of the plan."""
    import paribus

    tmp_path = tmp_path_factory.mktemp("planned")
    planned = paribus.study(written(folder, {"name": "local"}, to=tmp_path), store=tmp_path / "runs")
    paribus.run(planned, jobs=1)
    return fingerprint(planned.store)


@pytest.mark.slow
def test_any_order_of_events_gives_the_same_records(runner: Runner, tmp_path: Path, expected: str) -> None:
    orders = set()
    for dice, width in ((1, 1), (2, 1), (3, 1), (4, 3)):
        at = tmp_path / "runs"
        ended(runner(dice, width))
        assert fingerprint(store(tmp_path)) == expected, f"dice {dice}, {width} at a time"
        orders.add(tuple(diary(tmp_path, dice)))
        at.rename(tmp_path / f"runs-{dice}")
        (tmp_path / "cache").rename(tmp_path / f"cache-{dice}")  # whichever trial is first encodes the corpus
    assert len(orders) == 4
    assert {len(order) for order in orders} == {TRIALS}


@pytest.mark.slow
def test_two_runners_in_different_orders_share_a_study(runner: Runner, tmp_path: Path, expected: str) -> None:
    for process in [runner(6), runner(7)]:
        ended(process)
    assert fingerprint(store(tmp_path)) == expected
    assert all(diary(tmp_path, dice) for dice in (6, 7))
    assert set(diary(tmp_path, 6)) | set(diary(tmp_path, 7)) == {each["identity"] for each in store(tmp_path).records()}


@pytest.mark.faults
def test_an_interrupted_runner_is_resumed_in_another_order(
    runner: Runner, tmp_path: Path, expected: str, record_property: Callable[[str, object], None]
) -> None:
    luck = random.Random(5)
    cut: list[int] = []
    beside = None
    for dice, number in enumerate((signal.SIGKILL, signal.SIGTERM, signal.SIGKILL, signal.SIGKILL), start=10):
        process = runner(dice, 2)
        until_it_has_begun(process, tmp_path, dice)
        time.sleep(luck.uniform(0.0, 0.5))
        if process.poll() is None:  # or the one beside it was too quick for it
            os.kill(process.pid, number)
            cut.append(number)
        process.communicate(timeout=120)
        if len(cut) == 2:
            beside = runner(8)  # one that is left alone
    assert beside is not None, cut
    ended(beside)
    assert fingerprint(store(tmp_path)) == expected
    record_property("kill -9 survived", cut.count(signal.SIGKILL))


def until_it_has_begun(process: subprocess.Popen[str], tmp_path: Path, dice: int) -> None:
    """A trial of its own, or there was none left for it."""
    end = time.monotonic() + 300
    while not diary(tmp_path, dice) and process.poll() is None:
        assert time.monotonic() < end
        time.sleep(0.02)
