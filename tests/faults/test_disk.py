"""Failing disks: an error at each write, once or permanently, and a full file system of one megabyte."""

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
from paribus.runner.outcomes import EXIT_RETRY, TRANSIENT_ERRORS
from paribus.runner.processes import process_environment
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
    """Return system calls whose k-th call fails, and all later ones if the error is permanent."""
    calls = iter(range(10_000))

    def before(name: str) -> None:
        index = next(calls)
        if name not in ("close", "unlink") and (index == k or (index > k and code in FOR_GOOD)):
            raise OSError(code, os.strerror(code))

    return FILES.with_callback(before)


def make_request(root: Path, trial: Trial) -> tuple[Store, WorkerRequest]:
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
def disk_trial(trial: MakeTrial) -> Trial:
    return trial(steps=STEPS)


@pytest.fixture(scope="module")
def expected_outcome(
    disk_trial: Trial, registry: Registry, tmp_path_factory: pytest.TempPathFactory
) -> tuple[bytes, int]:
    """Result of the trial, and the number of its writing system calls."""
    store, request = make_request(tmp_path_factory.mktemp("expected_outcome"), disk_trial)
    calls: list[str] = []
    assert run_request(request, registry, stop=StopRequest(), files=FILES.with_callback(calls.append)) == EXIT_OK
    outcome = result(store, disk_trial)
    assert outcome is not None
    return outcome, len(calls)


@pytest.mark.faults
@pytest.mark.held("D8", "D10", "D11")
@pytest.mark.parametrize("code", [*FOR_GOOD, *ONCE], ids=lambda code: errno.errorcode[code])
def test_a_failing_write_is_reported_and_the_next_run_has_the_same_result(
    disk_trial: Trial,
    registry: Registry,
    expected_outcome: tuple[bytes, int],
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    record_property: Property,
    code: int,
) -> None:
    expected, calls = expected_outcome
    reported = 0
    for k in range(calls):
        store, request = make_request(tmp_path / str(k), disk_trial)
        capfd.readouterr()
        code_of_run = run_request(request, registry, stop=StopRequest(), files=failing(k, code))
        last_line = capfd.readouterr().err.splitlines()[-1:]
        if code_of_run == EXIT_OK:  # a line of the log failed, or the last flush of a folder
            assert result(store, disk_trial) == expected, k
        else:
            reported += 1
            assert code_of_run == (EXIT_RETRY if code in TRANSIENT_ERRORS else EXIT_STORE), k
            assert "could not be" in last_line[0], (k, last_line)
            assert os.strerror(code) in last_line[0], (k, last_line)
            assert result(store, disk_trial) in (None, expected), k
        assert run_request(request, registry, stop=StopRequest()) == EXIT_OK, k
        assert result(store, disk_trial) == expected, k
        temporary_files = [path.name for path in store.root.rglob("*") if path.name.startswith(".paribus-")]
        assert temporary_files == [], k
    assert reported > calls // 2
    record_property("writes with an injected error", calls)


@pytest.fixture
def megabyte(tmp_path: Path) -> Iterator[Path]:
    """File system of one megabyte."""
    place = tmp_path / "megabyte"
    place.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={MEGABYTE}", "tmpfs", str(place)]
    mounted = subprocess.run(mount, capture_output=True, text=True, check=False)
    if mounted.returncode:
        pytest.skip(f"no file system of one megabyte can be mounted here: {mounted.stderr.strip()}")
    yield place
    subprocess.run(["umount", str(place)], check=True)


@pytest.mark.faults
@pytest.mark.held("D10")
def test_a_full_disk_is_reported_and_the_trial_resumes_once_there_is_space(
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
    failed = run()
    assert failed.returncode == EXIT_STORE, failed.stderr
    (line,) = [line for line in failed.stderr.splitlines() if line.startswith("error[")]
    assert str(megabyte / "runs") in line
    assert "bytes could not be written: No space left on device" in line
    assert "free that much space, and run it again" in line
    assert list((megabyte / "runs").rglob("record.json")) == []
    ballast.unlink()
    resumed = run()
    assert resumed.returncode == EXIT_OK, resumed.stderr
    assert json.loads(run().stdout) == json.loads(resumed.stdout)
    record_property("writes with an injected error", 1)


@pytest.mark.faults
@pytest.mark.held("D11")
def test_a_folder_deleted_while_a_trial_runs_is_reported_by_path(
    disk_trial: Trial,
    registry: Registry,
    expected_outcome: tuple[bytes, int],
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
) -> None:
    for call_index in range(0, expected_outcome[1], 5):
        root = tmp_path / str(call_index)
        store, request = make_request(root, disk_trial)
        calls = iter(range(10_000))

        def before(name: str, calls: Any = calls, call_index: int = call_index, root: Path = root) -> None:
            if next(calls) == call_index:
                shutil.rmtree(root / "study")

        ended = run_request(request, registry, stop=StopRequest(), files=FILES.with_callback(before))
        assert ended in (EXIT_OK, EXIT_STORE), call_index
        if ended == EXIT_STORE:
            assert str(root) in capfd.readouterr().err.splitlines()[-1]
        store, request = make_request(root, disk_trial)
        assert run_request(request, registry, stop=StopRequest()) == EXIT_OK
        assert result(store, disk_trial) == expected_outcome[0]
