"""Claims, and what a trial does whose claim is lost while it trains."""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from paribus.errors import StoreError
from paribus.registry import Registry
from paribus.runner.outcomes import EXIT_LOCKED
from paribus.runner.signals import StopRequest
from paribus.runner.worker import WorkerRequest, run_request
from paribus.storage.lease import HostIdentity, LostLeaseError, host_identity
from paribus.storage.saved_model import RECORD
from paribus.storage.store import FAILURE, Store, Trial
from paribus.storage.trial_lock import TrialLock

A = HostIdentity("a", "kernel-a", has_flock=False, heartbeat_seconds=0.0, lease_seconds=1.0)
B = replace(A, host="b", kernel="kernel-b")


def test_on_one_machine_a_release_is_a_release_and_a_death_too(tmp_path: Path) -> None:
    first_lock, second = TrialLock(tmp_path, host_identity()), TrialLock(tmp_path, host_identity())
    with first_lock:
        assert not second.is_free()
        assert not second.try_acquire()
        with pytest.raises(StoreError, match=r"\[locked\].* process \d+ on .* since "):
            second.acquire()
    assert second.is_free()
    assert second.try_acquire()
    second._lock.release()  # what the kernel does at a death
    assert first_lock.is_free()
    assert first_lock.try_acquire()
    first_lock.release()


def test_another_machine_is_asked_nothing_that_only_this_kernel_knows(tmp_path: Path) -> None:
    first_lock, second = (
        TrialLock(tmp_path, replace(host_identity(), kernel="another")),
        TrialLock(tmp_path, host_identity()),
    )
    assert first_lock.try_acquire()
    first_lock._lock.release()  # its lock is not seen from here
    assert second.is_remote()
    assert not second.is_free()
    assert not second.try_acquire()
    assert second._lock.try_acquire()  # and what was tried in vain holds nothing


def test_a_trial_that_was_taken_over_leaves_everything_to_its_successor(
    tmp_path: Path, trial: Callable[..., Trial], registry: Registry, capfd: pytest.CaptureFixture[str]
) -> None:
    store, other = Store(tmp_path, "study", host=A), TrialLock(tmp_path / "study" / "base-0", B)
    store.create_folder(trial())

    def watch() -> None:
        while not other.lease.is_owned and (lock_held := other.lease.holder()) is not None:
            other.try_acquire(lock_held.token)  # its heart may have beaten in between

    order = WorkerRequest(store=str(tmp_path), study="study", identity="base-0", spec=trial().spec)
    assert run_request(order, registry, stop=StopRequest(), watch=watch, host=A) == EXIT_LOCKED
    assert "[lease-lost]" in capfd.readouterr().err
    assert not (store.folder("base-0") / RECORD).exists()
    assert not (store.folder("base-0") / FAILURE).exists()
    assert store.state("base-0") == "running"
    other.release()
    assert run_request(order, registry, stop=StopRequest(), host=A) == 0


def test_nothing_is_put_into_its_place_once_a_claim_is_lost(tmp_path: Path) -> None:
    first_lock, second = TrialLock(tmp_path, A), TrialLock(tmp_path, B)
    assert first_lock.try_acquire()
    files = first_lock.fenced_files(Store(tmp_path, "s").files)
    (tmp_path / "new").touch()
    files.rename(tmp_path / "new", tmp_path / "newer")
    lock_held = second.lease.holder()
    assert lock_held is not None
    assert second.try_acquire(lock_held.token)
    with pytest.raises(LostLeaseError, match=r"\[lease-lost\]"):
        files.rename(tmp_path / "newer", tmp_path / "record")
    with pytest.raises(LostLeaseError, match=r"\[lease-lost\]"):
        files.unlink(tmp_path / "newer")
    assert (tmp_path / "newer").exists()


def test_where_the_folder_knows_no_locks_the_lease_alone_decides(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def none(descriptor: int, how: int) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", none)
    first_lock, second = TrialLock(tmp_path, host_identity()), TrialLock(tmp_path, host_identity())
    assert first_lock.try_acquire()
    assert not second.is_free()
    assert not second.try_acquire()  # though it is the same machine: nothing tells that the holder has died
    first_lock.release()
    assert second.is_free()
    assert second.try_acquire()
