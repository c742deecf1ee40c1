"""Disks that fail: at every single write, for good or once, and one of a megabyte that is really full."""

from __future__ import annotations

import errno
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from paribus.errors import EXIT_OK, EXIT_STORE
from paribus.registry import Registry
from paribus.runner.fork_server import process_environment
from paribus.runner.outcomes import EXIT_RETRY, TRANSIENT_ERRORS
from paribus.runner.signals import StopRequest
from paribus.runner.worker import WorkerRequest, run_request
from paribus.storage.atomic import FILES, Files, canonical_json
from paribus.storage.store import Store, Trial
from paribus.train.trial_options import TrialOptions

STEPS = 4
EVERY = 2
FOR_GOOD = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES)
ONCE = (errno.EIO, errno.EMFILE)
MEGABYTE = 1 << 20

MakeTrial = Callable[..., Trial]
Property = Callable[[str, object], None]


def failing(k: int, code: int) -> Files:
    """Files whose k-th call fails, and those behind it as well where the disk stays as it is."""
    calls = iter(range(10_000))

    def before(name: str) -> None:
        at = next(calls)
        if name not in ("close", "unlink") and (at == k or (at > k and code in FOR_GOOD)):
            raise OSError(code, os.strerror(code))

    return FILES.with_callback(before)


def ordered(root: Path, trial: Trial) -> tuple[Store, WorkerRequest]:
    store = Store(root, "study")
    store.create_folder(trial)
    return store, WorkerRequest(
        store=str(root),
        study="study",
        identity=trial.identity,
        spec=trial.spec,
        options=TrialOptions(checkpoint_steps=EVERY),
    )


def result(store: Store, trial: Trial) -> bytes | None:
    record = store.record(trial.identity)
    return None if record is None else canonical_json(record["result"])


@pytest.fixture(scope="module")
def one(trial: MakeTrial) -> Trial:
    return trial(steps=STEPS)


@pytest.fixture(scope="module")
def uncut(one: Trial, registry: Registry, tmp_path_factory: pytest.TempPathFactory) -> tuple[bytes, int]:
    """The result of the trial, and how many calls that write it makes."""
    store, order = ordered(tmp_path_factory.mktemp("uncut"), one)
    calls: list[str] = []
    assert run_request(order, registry, stop=StopRequest(), files=FILES.with_callback(calls.append)) == EXIT_OK
    found = result(store, one)
    assert found is not None
    return found, len(calls)


@pytest.mark.faults
@pytest.mark.held("D9", "D11", "D12")
@pytest.mark.parametrize("code", [*FOR_GOOD, *ONCE], ids=lambda code: errno.errorcode[code])
def test_whichever_write_of_a_trial_fails_it_is_told_and_the_next_run_comes_to_the_same(
    one: Trial,
    registry: Registry,
    uncut: tuple[bytes, int],
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    record_property: Property,
    code: int,
) -> None:
    expected, calls = uncut
    told = 0
    for k in range(calls):
        store, order = ordered(tmp_path / str(k), one)
        capfd.readouterr()
        ended = run_request(order, registry, stop=StopRequest(), files=failing(k, code))
        last = capfd.readouterr().err.splitlines()[-1:]
        if ended == EXIT_OK:  # it was a line of the log, or the last folder that was flushed
            assert result(store, one) == expected, k
        else:
            told += 1
            assert ended == (EXIT_RETRY if code in TRANSIENT_ERRORS else EXIT_STORE), k
            assert "could not be" in last[0], (k, last)
            assert os.strerror(code) in last[0], (k, last)
            assert result(store, one) in (None, expected), k
        assert run_request(order, registry, stop=StopRequest()) == EXIT_OK, k
        assert result(store, one) == expected, k
        strays = [path.name for path in store.root.rglob("*") if path.name.startswith(".paribus-")]
        assert strays == [], k
    assert told > calls // 2
    record_property("writes that were made to fail", calls)


@pytest.fixture
def megabyte(tmp_path: Path) -> Iterator[Path]:
    """A file system of one megabyte."""
    place = tmp_path / "megabyte"
    place.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={MEGABYTE}", "tmpfs", str(place)]
    mounted = subprocess.run(mount, capture_output=True, text=True, check=False)
    if mounted.returncode:
        pytest.skip(f"no file system of one megabyte can be mounted here: {mounted.stderr.strip()}")
    yield place
    subprocess.run(["umount", str(place)], check=True)


@pytest.mark.faults
@pytest.mark.held("D11")
def test_on_a_disk_that_is_really_full_a_trial_is_told_of_and_goes_on_when_there_is_room(
    megabyte: Path, tmp_path: Path, record_property: Property
) -> None:
    sizes = ["dims.width=16", "dims.layers=1", "dims.heads=2", "dims.length=16", "data.batch=4", "data.validation=8"]
    words = ["train", "encoder-tiny", *sizes, "trainer.max_steps=4", "--store", str(megabyte / "runs"), "--json"]

    def run() -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "paribus", *words]
        return subprocess.run(
            command, env=process_environment(), capture_output=True, text=True, check=False, cwd=tmp_path
        )

    ballast = megabyte / "ballast"
    ballast.write_bytes(bytes(MEGABYTE - 24_000))
    full = run()
    assert full.returncode == EXIT_STORE, full.stderr
    (line,) = [line for line in full.stderr.splitlines() if line.startswith("error[")]
    assert str(megabyte / "runs") in line
    assert "bytes could not be written: No space left on device" in line
    assert "free that much space, and run it again" in line
    assert list((megabyte / "runs").rglob("record.json")) == []
    ballast.unlink()
    there = run()
    assert there.returncode == EXIT_OK, there.stderr
    assert json.loads(run().stdout) == json.loads(there.stdout)
    record_property("writes that were made to fail", 1)


@pytest.mark.faults
@pytest.mark.held("D12")
def test_a_folder_that_vanishes_while_a_trial_runs_is_named(
    one: Trial, registry: Registry, uncut: tuple[bytes, int], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    for at in range(0, uncut[1], 5):
        root = tmp_path / str(at)
        store, order = ordered(root, one)
        calls = iter(range(10_000))

        def before(name: str, calls: Any = calls, at: int = at, root: Path = root) -> None:
            if next(calls) == at:
                shutil.rmtree(root / "study")

        ended = run_request(order, registry, stop=StopRequest(), files=FILES.with_callback(before))
        assert ended in (EXIT_OK, EXIT_STORE), at
        if ended == EXIT_STORE:
            assert str(root) in capfd.readouterr().err.splitlines()[-1]
        store, order = ordered(root, one)
        assert run_request(order, registry, stop=StopRequest()) == EXIT_OK
        assert result(store, one) == uncut[0]
