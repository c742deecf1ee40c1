"""Trial locks, and trials that lose their lock during training."""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from tests.fixtures.problems import raises_problem

from paribus.errors import StoreError
from paribus.registry import Registry
from paribus.runner.outcomes import EXIT_LOCKED
from paribus.runner.signals import StopRequest
from paribus.runner.worker import WorkerRequest, run_request
from paribus.storage.lease import HostIdentity, LostLeaseError, host_identity
from paribus.storage.lock import TrialLock
from paribus.storage.saved_model import RECORD
from paribus.storage.store import FAILURE, Store, Trial

A = HostIdentity("a", "kernel-a", has_flock=False, heartbeat_seconds=0.0, lease_seconds=1.0)
B = replace(A, host="b", kernel="kernel-b")


def test_a_lock_is_free_after_a_release_or_the_death_of_its_owner(tmp_path: Path) -> None:
    first_lock, second = TrialLock(tmp_path, host_identity()), TrialLock(tmp_path, host_identity())
    with first_lock:
        assert not second.is_free()
        assert not second.try_acquire()
        with raises_problem(StoreError, "locked"):
            second.acquire()
    assert second.is_free()
    assert second.try_acquire()
    second._lock.release()  # the kernel does this when the owner dies
    assert first_lock.is_free()
    assert first_lock.try_acquire()
    first_lock.release()


def test_a_lock_of_another_machine_is_not_judged_by_the_local_flock(tmp_path: Path) -> None:
    first_lock, second = (
        TrialLock(tmp_path, replace(host_identity(), kernel="another")),
        TrialLock(tmp_path, host_identity()),
    )
    assert first_lock.try_acquire()
    first_lock._lock.release()  # flock of another machine is not visible
    assert second.is_remote()
    assert not second.is_free()
    assert not second.try_acquire()
    assert second._lock.try_acquire()  # the failed attempt holds no lock


@pytest.mark.thorough
def test_a_trial_that_lost_its_lease_writes_nothing(
    tmp_path: Path, trial: Callable[..., Trial], registry: Registry, capfd: pytest.CaptureFixture[str]
) -> None:
    store, new_lock = Store(tmp_path, "study", host=A), TrialLock(tmp_path / "study" / "base-0", B)
    store.create_folder(trial())

    def watch() -> None:
        while not new_lock.lease.is_owned and (lock_held := new_lock.lease.holder()) is not None:
            new_lock.try_acquire(lock_held.token)  # there may have been a heartbeat in between

    request = WorkerRequest(store=str(tmp_path), study="study", identity="base-0", spec=trial().spec)
    assert run_request(request, registry, stop=StopRequest(), watch=watch, host=A) == EXIT_LOCKED
    assert "[lease-lost]" in capfd.readouterr().err
    assert not (store.folder("base-0") / RECORD).exists()
    assert not (store.folder("base-0") / FAILURE).exists()
    assert store.state("base-0") == "running"
    new_lock.release()
    assert run_request(request, registry, stop=StopRequest(), host=A) == 0


def test_fenced_files_are_not_renamed_or_removed_after_a_lost_lease(tmp_path: Path) -> None:
    first_lock, second = TrialLock(tmp_path, A), TrialLock(tmp_path, B)
    assert first_lock.try_acquire()
    files = first_lock.fenced_files(Store(tmp_path, "s").files)
    (tmp_path / "new").touch()
    files.rename(tmp_path / "new", tmp_path / "newer")
    lock_held = second.lease.holder()
    assert lock_held is not None
    assert second.try_acquire(lock_held.token)
    with raises_problem(LostLeaseError, "lease-lost"):
        files.rename(tmp_path / "newer", tmp_path / "record")
    with raises_problem(LostLeaseError, "lease-lost"):
        files.unlink(tmp_path / "newer")
    assert (tmp_path / "newer").exists()


def test_without_flock_the_lease_alone_decides(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def unsupported_flock(descriptor: int, operation: int) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", unsupported_flock)
    first_lock, second = TrialLock(tmp_path, host_identity()), TrialLock(tmp_path, host_identity())
    assert first_lock.try_acquire()
    assert not second.is_free()
    assert not second.try_acquire()  # also on the same machine: without flock, a dead owner cannot be detected
    first_lock.release()
    assert second.is_free()
    assert second.try_acquire()
