"""The claim to a trial: a lock that the kernel releases on this machine, and a lease that other machines see."""

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
    """At most one process of all machines has it; the death of its holder ends it, here at once, elsewhere in time."""

    def __init__(self, folder: Path, host: HostIdentity) -> None:
        self.path = folder / LOCK
        self.host = host
        self.lease = Lease(folder, host)
        self._lock = Lock(self.path)

    def try_acquire(self, expired: str = "") -> bool:
        """Take it if nobody has it, and say whether it is ours now; `expired` is what a `Watch` knows of its holder."""
        if self.lease.is_owned:
            return True
        if not self._asked(self._lock.try_acquire):
            return False
        taken = False
        try:
            taken = self.lease.take(expired)
        finally:
            if not taken:
                self._lock.release()
        return taken

    def acquire(self) -> None:
        """Take it, or raise an error that names its holder. It never waits."""
        if not self.try_acquire():
            message = f"locked by {self.owner() or 'another process'}; wait for it, or end it first"
            raise StoreError(Problem(code="locked", location=str(self.path), message=message))

    def start_heartbeat(self) -> None:
        """Have other machines see that its holder lives, from now on."""
        self.lease.start_heartbeat()

    def release(self) -> None:
        self.lease.release()
        self._lock.release()

    def is_free(self) -> bool:
        """Whether nobody has it, without taking it."""
        return self._asked(self._lock.is_free) and not self.is_remote()

    def is_remote(self) -> bool:
        """Whether it is, or was until a death, on another machine."""
        held = self.lease.holder()
        return held is not None and not (self.host.has_flock and held.kernel == self.host.kernel)

    def owner(self) -> Owner | None:
        held = self.lease.holder()
        return (held.owner if held is not None else None) or self._lock.owner()

    def fenced_files(self, files: Files) -> Files:
        """The calls with which a trial writes: none of them puts anything into its place once the claim is lost."""

        def before(call: str) -> None:
            # Behind the creation of the file that is renamed, which has NFS look at the folder anew.
            if call in FENCED_CALLS:
                self.lease.check()

        return files.with_callback(before)

    def periodic_check(self) -> Callable[[], None]:
        """To be called as often as one likes: from time to time it looks whether the claim is lost."""
        last = time.monotonic()

        def check() -> None:
            nonlocal last
            if time.monotonic() - last > self.host.heartbeat_seconds:
                last = time.monotonic()
                self.lease.check()

        return check

    def _asked(self, lock: Callable[[], bool]) -> bool:
        """What the lock says; where the folder knows no locks, the lease alone decides."""
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

    def __exit__(self, *raised: type[BaseException] | BaseException | TracebackType | None) -> None:
        self.release()
