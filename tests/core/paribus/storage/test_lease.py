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

from paribus.errors import StoreError
from paribus.storage.lease import HostIdentity, Lease, LeaseMonitor, LostLeaseError, host_identity

A = HostIdentity("a", "kernel-a", has_flock=False, heartbeat_seconds=0.05, lease_seconds=1.0)
B = replace(A, host="b", kernel="kernel-b")


def token(lease: Lease) -> str:
    held = lease.holder()
    assert held is not None
    return held.token


def test_one_has_it_and_the_next_has_it_after_its_release(tmp_path: Path) -> None:
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


def test_of_any_number_of_takers_exactly_one_has_it(tmp_path: Path) -> None:
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
    assert len(list(tmp_path.iterdir())) <= 3  # and not a file for each that there ever was


def test_what_was_heard_since_is_no_longer_expired(tmp_path: Path) -> None:
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


def test_who_was_only_slow_finds_out_and_takes_nothing_back(tmp_path: Path) -> None:
    slow, other = Lease(tmp_path, A), Lease(tmp_path, B)
    assert slow.take()
    assert other.take(token(slow))
    with pytest.raises(LostLeaseError, match=r"\[lease-lost\].* process \d+ on b since"):
        slow.check()
    slow.release()
    other.check()
    assert token(other).startswith("2:")


def test_a_vanished_folder_is_named_and_was_taken_by_nobody(tmp_path: Path) -> None:
    folder = tmp_path / "trial"
    folder.mkdir()
    lease = Lease(folder, A)
    assert lease.take()
    (folder / "lease-000001").unlink()
    folder.rmdir()
    with pytest.raises(StoreError, match=r"\[no-folder\].*trial\)") as raised:
        lease.check()
    assert not isinstance(raised.value, LostLeaseError)
    lease.release()


def test_on_one_machine_the_lock_tells_of_the_living(tmp_path: Path) -> None:
    here = host_identity()
    assert Lease(tmp_path, here).take()  # and its holder has no lock
    assert Lease(tmp_path, here).take()
    assert not Lease(tmp_path, replace(here, has_flock=False)).take()


def test_a_watch_judges_by_change_on_a_clock_of_its_own(tmp_path: Path) -> None:
    now = [0.0]
    watch, holder, observed = LeaseMonitor(lambda: now[0]), Lease(tmp_path, A), Lease(tmp_path, B)
    assert watch.judge(observed) == ("free", "")
    assert holder.take()
    path = tmp_path / "lease-000001"
    os.utime(path, (0, 0))  # whatever the other clock says
    assert watch.judge(observed)[0] == "silent"
    now[0] += 0.4
    path.write_bytes(path.read_bytes().replace(b"0" * 20, b"0" * 19 + b"1"))
    assert watch.judge(observed)[0] == "alive"
    for _ in range(2):
        now[0] += 0.4
        assert watch.judge(observed)[0] == "alive"
    now[0] += 0.4
    state, expired = watch.judge(observed)
    assert state == "expired"
    assert observed.take(expired)


def test_a_watch_that_slept_has_seen_nothing(tmp_path: Path) -> None:
    now = [0.0]
    watch, holder, observed = LeaseMonitor(lambda: now[0]), Lease(tmp_path, A), Lease(tmp_path, B)
    assert holder.take()
    assert watch.judge(observed)[0] == "silent"
    now[0] += 1000
    assert watch.judge(observed)[0] == "silent"
    for _ in range(3):
        now[0] += 0.4
        found = watch.judge(observed)
    assert found[0] == "expired"


@pytest.mark.parametrize("content", [b"", b"{", b"\xff" * 9000])
def test_a_lease_that_cannot_be_read_is_somebodys_until_it_expires(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "lease-000007").write_bytes(content)
    lease = Lease(tmp_path, A)
    held = lease.holder()
    assert held is not None
    assert held.owner is None
    assert not lease.take()
    assert lease.take(held.token)
    assert (tmp_path / "lease-000008").exists()


def test_where_no_file_can_be_made_it_says_so(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match=r"cannot-lock.*none.*No such file or directory; use a writable folder"):
        Lease(tmp_path / "none", A).take()
    (tmp_path / "file").touch()
    with pytest.raises(StoreError, match=r"cannot-lock.*file.*Not a directory"):
        Lease(tmp_path / "file", A).holder()


@pytest.mark.faults
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_heart_stops_with_its_holder(tmp_path: Path, number: signal.Signals) -> None:
    script = (
        "import sys, time; from pathlib import Path; from paribus.storage.lease import HostIdentity, Lease;"
        "lease = Lease(Path(sys.argv[1]), HostIdentity('a', 'a', False, 0.05, 1.0));"
        "lease.take(); lease.start_heartbeat();"
        "print(lease._heartbeat.pid, flush=True); time.sleep(60)"
    )
    process = subprocess.Popen([sys.executable, "-c", script, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    heart = int(process.stdout.readline())
    os.kill(heart, signal.SIGTERM)  # as Ctrl-C reaches it too, while the trial writes its last checkpoint
    process.send_signal(number)
    process.wait()
    process.stdout.close()
    end = time.monotonic() + 20
    while Path(f"/proc/{heart}").exists() and "Z" not in Path(f"/proc/{heart}/stat").read_text().split()[2]:
        assert time.monotonic() < end
        time.sleep(0.05)
    lease = Lease(tmp_path, A)
    assert not lease.take()  # a death is no release
    assert lease.take(token(lease))
