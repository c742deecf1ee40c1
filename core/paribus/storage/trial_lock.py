"""Lock of a trial: a file lock for the processes of this machine, and a lease for other machines."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Final, Self, final

from paribus.errors import Problem, StoreError
from paribus.storage.atomic import Files
from paribus.storage.lease import HostIdentity, Lease, LostLeaseError
from paribus.storage.lock import Lock, Owner

LOCK: Final = "lock"
FENCED_CALLS: Final = ("rename", "unlink")  # the calls that change what others see

__all__ = ["LostLeaseError", "TrialLock"]


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
