from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import repeat
from pathlib import Path

import pytest
from tests.fixtures.problems import raises_problem

from paribus.errors import StoreError
from paribus.storage.lease import HostIdentity, Lease, LeaseMonitor, LostLeaseError, host_identity

A = HostIdentity("a", "kernel-a", has_flock=False, heartbeat_seconds=0.05, lease_seconds=1.0)
B = replace(A, host="b", kernel="kernel-b")


def token(lease: Lease) -> str:
    state = lease.holder()
    assert state is not None
    return state.token


def test_one_owner_holds_a_lease_until_it_releases_it(tmp_path: Path) -> None:
    first_lease, second = Lease(tmp_path, A), Lease(tmp_path, B)
    assert first_lease.holder() is None
    assert first_lease.take()
    assert not second.take()
    lease = second.holder()
    assert lease is not None
    assert lease.owner is not None
    assert (lease.owner.host, lease.owner.pid) == ("a", os.getpid())
    first_lease.check()
    first_lease.release()
    assert second.holder() is None
    assert second.take()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["lease-000001", "lease-000002"]


def test_exactly_one_of_many_takers_gets_an_expired_lease(tmp_path: Path) -> None:
    dead = Lease(tmp_path, A)
    assert dead.take()
    expired = token(dead)
    for round_ in range(20):
        takers = [Lease(tmp_path, replace(B, host=f"b{number}", kernel=f"b{number}")) for number in range(8)]
        with ThreadPoolExecutor(8) as pool:
            took = list(pool.map(Lease.take, takers, repeat(expired)))
        assert sum(took) == 1, round_
        (winner,) = (lease for lease in takers if lease.is_owned)
        winner.check()
        expired = token(winner)
    assert len(list(tmp_path.iterdir())) <= 3  # old files are removed


def test_a_lease_with_a_newer_heartbeat_is_not_taken(tmp_path: Path) -> None:
    first_lease, second = Lease(tmp_path, A), Lease(tmp_path, B)
    assert first_lease.take()
    baseline = token(second)
    first_lease.start_heartbeat()
    end = time.monotonic() + 20
    while token(second) == baseline:
        assert time.monotonic() < end
        time.sleep(0.01)
    assert not second.take(baseline)
    first_lease.release()


def test_a_slow_owner_detects_its_lost_lease_and_cannot_release_it(tmp_path: Path) -> None:
    slow_lease, new_lease = Lease(tmp_path, A), Lease(tmp_path, B)
    assert slow_lease.take()
    assert new_lease.take(token(slow_lease))
    with raises_problem(LostLeaseError, "lease-lost", "b"):
        slow_lease.check()
    slow_lease.release()
    new_lease.check()
    assert token(new_lease).startswith("2:")


def test_a_missing_folder_is_reported_and_not_as_a_lost_lease(tmp_path: Path) -> None:
    folder = tmp_path / "trial"
    folder.mkdir()
    lease = Lease(folder, A)
    assert lease.take()
    (folder / "lease-000001").unlink()
    folder.rmdir()
    with raises_problem(StoreError, "missing-folder", "trial") as raised:
        lease.check()
    assert not isinstance(raised.value, LostLeaseError)
    lease.release()


def test_on_one_machine_a_lease_without_a_lock_is_taken(tmp_path: Path) -> None:
    identity = host_identity()
    assert Lease(tmp_path, identity).take()  # its owner has no flock
    assert Lease(tmp_path, identity).take()
    assert not Lease(tmp_path, replace(identity, has_flock=False)).take()


def test_a_monitor_judges_changes_by_its_own_clock(tmp_path: Path) -> None:
    now = [0.0]
    monitor, holder, observed = LeaseMonitor(lambda: now[0]), Lease(tmp_path, A), Lease(tmp_path, B)
    assert monitor.judge(observed) == ("free", "")
    assert holder.take()
    path = tmp_path / "lease-000001"
    os.utime(path, (0, 0))  # the clock of the other host is not used
    assert monitor.judge(observed)[0] == "silent"
    now[0] += 0.4
    path.write_bytes(path.read_bytes().replace(b"0" * 20, b"0" * 19 + b"1"))
    assert monitor.judge(observed)[0] == "alive"
    for _ in range(2):
        now[0] += 0.4
        assert monitor.judge(observed)[0] == "alive"
    now[0] += 0.4
    state, expired = monitor.judge(observed)
    assert state == "expired"
    assert observed.take(expired)


def test_a_monitor_that_was_suspended_starts_again(tmp_path: Path) -> None:
    now = [0.0]
    monitor, holder, observed = LeaseMonitor(lambda: now[0]), Lease(tmp_path, A), Lease(tmp_path, B)
    assert holder.take()
    assert monitor.judge(observed)[0] == "silent"
    now[0] += 1000
    assert monitor.judge(observed)[0] == "silent"
    for _ in range(3):
        now[0] += 0.4
        verdict = monitor.judge(observed)
    assert verdict[0] == "expired"


@pytest.mark.parametrize("content", [b"", b"{", b"\xff" * 9000])
def test_an_unreadable_lease_is_owned_until_it_expires(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "lease-000007").write_bytes(content)
    lease = Lease(tmp_path, A)
    state = lease.holder()
    assert state is not None
    assert state.owner is None
    assert not lease.take()
    assert lease.take(state.token)
    assert (tmp_path / "lease-000008").exists()


def test_an_unwritable_folder_is_an_error(tmp_path: Path) -> None:
    with raises_problem(StoreError, "cannot-lock", "No such file"):
        Lease(tmp_path / "none", A).take()
    (tmp_path / "file").touch()
    with raises_problem(StoreError, "cannot-lock", "Not a directory"):
        Lease(tmp_path / "file", A).holder()


@pytest.mark.faults
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_the_heartbeat_ends_with_its_owner(tmp_path: Path, number: signal.Signals) -> None:
    script = (
        "import sys, time; from pathlib import Path; from paribus.storage.lease import HostIdentity, Lease;"
        "lease = Lease(Path(sys.argv[1]), HostIdentity('a', 'a', False, 0.05, 1.0));"
        "lease.take(); lease.start_heartbeat();"
        "print(lease._heartbeat.pid, flush=True); time.sleep(60)"
    )
    process = subprocess.Popen([sys.executable, "-c", script, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    heartbeat_pid = int(process.stdout.readline())
    os.kill(
        heartbeat_pid, signal.SIGTERM
    )  # Ctrl-C reaches the heartbeat too, while the trial writes its last checkpoint
    process.send_signal(number)
    process.wait()
    process.stdout.close()
    end = time.monotonic() + 20
    while (
        Path(f"/proc/{heartbeat_pid}").exists()
        and "Z" not in Path(f"/proc/{heartbeat_pid}/stat").read_text().split()[2]
    ):
        assert time.monotonic() < end
        time.sleep(0.05)
    lease = Lease(tmp_path, A)
    assert not lease.take()  # the lease of a dead owner has to expire first
    assert lease.take(token(lease))
