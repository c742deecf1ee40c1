from __future__ import annotations

import errno
import fcntl
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from tests.fixtures.problems import raises_problem

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


def test_acquire_and_release(tmp_path: Path) -> None:
    first_lock, second_lock = Lock(tmp_path / "lock"), Lock(tmp_path / "lock")
    assert first_lock.is_free()
    assert first_lock.try_acquire()
    assert first_lock.try_acquire()
    assert not second_lock.is_free()
    assert not second_lock.try_acquire()
    first_lock.release()
    first_lock.release()
    assert second_lock.is_free()
    assert second_lock.try_acquire()
    second_lock.release()


@pytest.mark.thorough
def test_queries_do_not_prevent_acquiring(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    path.touch()
    stop = threading.Event()

    def query() -> None:
        while not stop.is_set():
            Lock(path).is_free()

    threads = [threading.Thread(target=query) for _ in range(2)]
    for thread in threads:
        thread.start()
    try:
        for attempt in range(300):
            lock = Lock(path)
            assert lock.try_acquire(), attempt
            lock.release()
    finally:
        stop.set()
        for thread in threads:
            thread.join()


def test_acquiring_waits_until_a_query_ends(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    path.touch()
    with path.open() as query:
        fcntl.flock(query, fcntl.LOCK_SH | fcntl.LOCK_NB)
        end_of_query = threading.Timer(0.05, fcntl.flock, (query, fcntl.LOCK_UN))
        end_of_query.start()
        assert Lock(path).try_acquire()
        end_of_query.join()


def test_a_query_does_not_hide_the_lock_from_another_query(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    path.touch()
    with path.open() as query:
        fcntl.flock(query, fcntl.LOCK_SH | fcntl.LOCK_NB)  # a query of another process that is not finished
        assert Lock(path).is_free()


def test_a_query_works_in_a_read_only_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "lock"
    path.touch()
    open_file = os.open

    def open_read_only(file: Path, flags: int, *mode: int) -> int:
        if flags & (os.O_RDWR | os.O_WRONLY | os.O_CREAT):
            raise PermissionError(errno.EROFS, os.strerror(errno.EROFS))
        return open_file(file, flags, *mode)

    monkeypatch.setattr(os, "open", open_read_only)
    assert Lock(path).is_free()


def test_all_locks_share_one_fork_hook(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hooks: list[object] = []
    monkeypatch.setattr(os, "register_at_fork", lambda **hook: hooks.append(hook))
    for name in "abc":
        with Lock(tmp_path / name):
            pass
    assert len(hooks) <= 1


def test_a_failed_acquire_names_owner_file_and_time(tmp_path: Path) -> None:
    with Lock(tmp_path / "lock"), raises_problem(StoreError, "locked") as caught:
        Lock(tmp_path / "lock").acquire()
    assert f"process {os.getpid()} on {os.uname().nodename} since 20" in str(caught.value)
    assert caught.value.exit_code == EXIT_STORE
    with Lock(tmp_path / "lock"):
        pass


def test_a_lock_is_free_after_its_owner_is_killed(tmp_path: Path) -> None:
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
def test_a_forked_child_neither_keeps_nor_releases_the_lock(tmp_path: Path) -> None:
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
def test_a_lock_with_an_unreadable_owner_is_still_locked(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "lock"
    with Lock(path):
        path.write_bytes(content)
        assert Lock(path).owner() is None
        with raises_problem(StoreError, "locked", "another process"):
            Lock(path).acquire()
    assert Lock(tmp_path / "none").owner() is None


def test_an_error_names_the_file_that_cannot_be_locked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with raises_problem(StoreError, "cannot-lock", "none/lock", "No such file"):
        Lock(tmp_path / "none" / "lock").try_acquire()

    def refuse(*_: object) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", refuse)
    open_files = len(list(Path("/proc/self/fd").iterdir()))
    with raises_problem(StoreError, "no-locks", "No locks available"):
        Lock(tmp_path / "lock").try_acquire()
    assert len(list(Path("/proc/self/fd").iterdir())) == open_files


def test_a_full_disk_does_not_prevent_locking(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "pwrite", full)
    with Lock(tmp_path / "lock"):
        assert not Lock(tmp_path / "lock").try_acquire()
