from __future__ import annotations

import errno
import fcntl
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from paribus.errors import EXIT_STORE, StoreError
from paribus.storage.lock import Lock

HOLDER = """
import sys, time
from pathlib import Path
from paribus.storage.lock import Lock
assert Lock(Path(sys.argv[1])).try_acquire()
print("held", flush=True)
time.sleep(60)
"""


def test_a_lock_is_taken_once_and_given_back(tmp_path: Path) -> None:
    first, second = Lock(tmp_path / "lock"), Lock(tmp_path / "lock")
    assert first.try_acquire()
    assert first.try_acquire()
    assert not second.try_acquire()
    first.release()
    first.release()
    assert second.try_acquire()
    second.release()


def test_who_finds_it_held_is_told_by_whom_where_and_since_when(tmp_path: Path) -> None:
    with Lock(tmp_path / "lock"), pytest.raises(StoreError, match=r"held.*lock\): held by process \d+ on ") as caught:
        Lock(tmp_path / "lock").acquire()
    assert f"process {os.getpid()} on {os.uname().nodename} since 20" in str(caught.value)
    assert caught.value.exit_code == EXIT_STORE
    with Lock(tmp_path / "lock"):
        pass


def test_another_process_holds_it_until_it_is_killed(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    with subprocess.Popen([sys.executable, "-c", HOLDER, str(path)], stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        assert not Lock(path).try_acquire()
        owner = Lock(path).owner()
        assert owner is not None
        assert owner.pid == holder.pid
        holder.send_signal(signal.SIGKILL)
    with Lock(path) as lock:
        owner = lock.owner()
        assert owner is not None
        assert owner.pid == os.getpid()


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")  # 3.12 warns where torch has threads; we use none
def test_a_forked_child_neither_keeps_the_lock_nor_gives_it_back(tmp_path: Path) -> None:
    lock = Lock(tmp_path / "lock")
    lock.acquire()
    child = os.fork()
    if child == 0:
        time.sleep(60)
        os._exit(0)
    try:
        time.sleep(0.1)
        assert not Lock(tmp_path / "lock").try_acquire()
        lock.release()
        assert lock.try_acquire()  # though the child still lives
        lock.release()
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"host": "a", "pid": "x", "since": ""}', b"\xff", b"[" * 9000])
def test_a_lock_whose_owner_cannot_be_read_is_still_held(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "lock"
    with Lock(path):
        path.write_bytes(content)
        assert Lock(path).owner() is None
        with pytest.raises(StoreError, match="held by another process; wait until"):
            Lock(path).acquire()
    assert Lock(tmp_path / "none").owner() is None


def test_a_file_that_cannot_be_opened_or_locked_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(StoreError, match=r"none/lock\): this file could not be locked: No such file.*local disk"):
        Lock(tmp_path / "none" / "lock").try_acquire()

    def refuse(*_: object) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", refuse)
    before = len(list(Path("/proc/self/fd").iterdir()))
    with pytest.raises(StoreError, match="could not be locked: No locks available"):
        Lock(tmp_path / "lock").try_acquire()
    assert len(list(Path("/proc/self/fd").iterdir())) == before


def test_a_full_disk_does_not_keep_anybody_from_the_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "pwrite", full)
    with Lock(tmp_path / "lock"):
        assert not Lock(tmp_path / "lock").try_acquire()
