"""Locks: a file lock (`flock`) for the processes of one machine, and the lock of a trial for several machines.

The kernel releases a file lock when its owner dies. The lock of a trial adds a lease, which other machines see.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import random
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, replace
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from types import TracebackType
from typing import Final, Self, final
from weakref import WeakSet

from paribus.errors import Problem, StoreError
from paribus.storage.atomic import Files
from paribus.storage.lease import HostIdentity, Lease, Owner

OWNER_BYTES: Final = 4096  # read at most
NO_LOCK_ERRORS: Final = (errno.ENOLCK, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS)  # usually a network folder
QUERY_SECONDS: Final = 1.0  # limit of waiting for `is_free` calls of other processes, which take microseconds
QUERY_PAUSE: Final = 0.001


@final
class Lock:
    """Advisory lock on a file for the processes of one host; the kernel releases it when the owner dies.

    The owner has an exclusive `flock`. `is_free` takes a shared one for a moment, so that queries do not hide each
    other, and `try_acquire` waits for queries to end. `release` leaves the file in place: if it were removed, two
    processes could each lock a file of that name.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._descriptor: int | None = None

    def try_acquire(self) -> bool:
        """Take the lock if it is free, and return whether this object owns it now."""
        if self._descriptor is not None:
            return True
        try:
            descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o666)
        except OSError as error:
            raise self._unusable(error) from error
        try:
            is_locked = _lock_exclusively(descriptor)
        except OSError as error:
            os.close(descriptor)
            raise self._unusable(error) from error
        if not is_locked:
            os.close(descriptor)
            return False
        self._descriptor = descriptor
        _locks_of_this_process().add(self)
        _write_owner(descriptor)
        return True

    def is_free(self) -> bool:
        """Return whether no process owns the lock; creates and writes nothing."""
        try:
            descriptor = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        except FileNotFoundError:
            return True
        except OSError as error:
            raise self._unusable(error) from error
        try:
            return _try_flock(descriptor, fcntl.LOCK_SH)
        except OSError as error:
            raise self._unusable(error) from error
        finally:
            os.close(descriptor)

    def acquire(self) -> None:
        """Take the lock without waiting, or raise an error that names its owner."""
        if not self.try_acquire():
            message = f"locked by {self.owner() or 'another process'}; wait for it, or end it first"
            raise StoreError(Problem(code="locked", location=str(self.path), message=message))

    def release(self) -> None:
        """Release the lock by closing the file: in a forked child, this does not release the lock of the parent."""
        if self._descriptor is not None:
            descriptor, self._descriptor = self._descriptor, None
            os.close(descriptor)

    def owner(self) -> Owner | None:
        """Return the last owner, which may have ended since; None if the file cannot be read."""
        try:
            with self.path.open("rb") as file:
                owner = json.loads(file.read(OWNER_BYTES))
            return Owner(host=str(owner["host"]), pid=int(owner["pid"]), since=str(owner["since"]))
        except (OSError, ValueError, TypeError, KeyError, RecursionError):
            return None

    def __enter__(self) -> Self:
        self.acquire()
        return self

    def __exit__(self, *exception: type[BaseException] | BaseException | TracebackType | None) -> None:
        self.release()

    def _unusable(self, error: OSError) -> StoreError:
        message = f"cannot lock this file: {error.strerror or error}; use a writable folder on a local disk"
        code = "no-locks" if error.errno in NO_LOCK_ERRORS else "cannot-lock"
        return StoreError(Problem(code=code, location=str(self.path), message=message))


def _lock_exclusively(descriptor: int) -> bool:
    """Take an exclusive lock, and wait for shared ones, which are queries of other processes."""
    end = time.monotonic() + QUERY_SECONDS
    while not _try_flock(descriptor, fcntl.LOCK_EX):
        if not _try_flock(descriptor, fcntl.LOCK_SH) or time.monotonic() > end:
            return False
        fcntl.flock(descriptor, fcntl.LOCK_UN)
        time.sleep(random.uniform(0, QUERY_PAUSE))  # two takers must not stay in step
    return True


def _try_flock(descriptor: int, kind: int) -> bool:
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


@cache
def _locks_of_this_process() -> WeakSet[Lock]:
    """Return the set of owned locks, which a forked child (a data worker) releases: it may outlive this process."""
    locks: WeakSet[Lock] = WeakSet()

    def release_all() -> None:
        for lock in list(locks):
            lock.release()

    os.register_at_fork(after_in_child=release_all)
    return locks


def _write_owner(descriptor: int) -> None:
    """Write this process into the lock's file."""
    since = datetime.now(UTC).isoformat(timespec="seconds")
    owner = Owner(host=os.uname().nodename, pid=os.getpid(), since=since)
    with suppress(OSError):  # a full disk does not affect the lock itself
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, json.dumps(asdict(owner)).encode(), 0)


LOCK: Final = "lock"
FENCED_CALLS: Final = ("rename", "unlink")  # the calls that change what others see


@final
class TrialLock:
    """Lock that at most one process on all machines owns; the death of its owner releases it.

    On the same machine it is free at once, for other machines when the lease expires.
    """

    def __init__(self, folder: Path, host: HostIdentity) -> None:
        self.path = folder / LOCK
        self.host = host
        self.lease = Lease(folder, host)
        self._lock = Lock(self.path)

    def try_acquire(self, expired: str = "") -> bool:
        """Take the lock if it is free, and return whether this object owns it; `expired` is a token of a monitor."""
        if self.lease.is_owned:
            return True
        if not self._if_supported(self._lock.try_acquire):
            return False
        taken = False
        try:
            taken = self.lease.take(expired)
        finally:
            if not taken:
                self._lock.release()
        return taken

    def acquire(self) -> None:
        """Take the lock without waiting, or raise an error that names its owner."""
        if not self.try_acquire():
            message = f"locked by {self.owner() or 'another process'}; wait for it, or end it first"
            raise StoreError(Problem(code="locked", location=str(self.path), message=message))

    def start_heartbeat(self) -> None:
        """Show other machines from now on that the owner is alive."""
        self.lease.start_heartbeat()

    def release(self) -> None:
        self.lease.release()
        self._lock.release()

    def is_free(self) -> bool:
        """Return whether no process owns the lock, without taking it."""
        return self._if_supported(self._lock.is_free) and not self.is_remote()

    def is_remote(self) -> bool:
        """Return whether its owner is on another machine, alive or not."""
        holder = self.lease.holder()
        return holder is not None and not (self.host.has_flock and holder.kernel == self.host.kernel)

    def owner(self) -> Owner | None:
        holder = self.lease.holder()
        return (holder.owner if holder is not None else None) or self._lock.owner()

    def fenced_files(self, files: Files) -> Files:
        """Return the system calls of a trial's writes, which raise an error once the lock is lost."""

        def check_lease(call: str) -> None:
            # Checked after the temporary file was created, because that makes NFS read the folder again.
            if call in FENCED_CALLS:
                self.lease.check()

        return files.with_callback(check_lease)

    def periodic_check(self) -> Callable[[], None]:
        """Return a cheap function that checks from time to time whether the lock is lost."""
        last_check = time.monotonic()

        def check() -> None:
            nonlocal last_check
            if time.monotonic() - last_check > self.host.heartbeat_seconds:
                last_check = time.monotonic()
                self.lease.check()

        return check

    def _if_supported(self, lock: Callable[[], bool]) -> bool:
        """Return the result of `lock`; True in a folder without file locks, where the lease alone decides."""
        try:
            return not self.host.has_flock or lock()
        except StoreError as error:
            if error.problems[0].code != "no-locks":
                raise
            self.host = replace(self.host, has_flock=False)
            self.lease = Lease(self.path.parent, self.host)
            return True

    def __enter__(self) -> Self:
        self.acquire()
        self.start_heartbeat()
        return self

    def __exit__(self, *exception: type[BaseException] | BaseException | TracebackType | None) -> None:
        self.release()
