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

    def __init__(self, folder: Path, claimant: HostIdentity) -> None:
        self.path = folder / LOCK
        self.claimant = claimant
        self.lease = Lease(folder, claimant)
        self._lock = Lock(self.path)

    def try_acquire(self, expired: str = "") -> bool:
        """Take it if nobody has it, and say whether it is ours now; `expired` is what a `Watch` knows of its holder."""
        if self.lease.ours:
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

    def keep(self) -> None:
        """Have other machines see that its holder lives, from now on."""
        self.lease.keep()

    def release(self) -> None:
        self.lease.release()
        self._lock.release()

    def free(self) -> bool:
        """Whether nobody has it, without taking it."""
        return self._asked(self._lock.is_free) and not self.elsewhere()

    def elsewhere(self) -> bool:
        """Whether it is, or was until a death, on another machine."""
        held = self.lease.held()
        return held is not None and not (self.claimant.locks and held.kernel == self.claimant.kernel)

    def owner(self) -> Owner | None:
        held = self.lease.held()
        return (held.owner if held is not None else None) or self._lock.owner()

    def fenced(self, files: Files) -> Files:
        """The calls with which a trial writes: none of them puts anything into its place once the claim is lost."""

        def before(call: str) -> None:
            # Behind the creation of the file that is renamed, which has NFS look at the folder anew.
            if call in FENCED_CALLS:
                self.lease.check()

        return files.announced(before)

    def checking(self) -> Callable[[], None]:
        """To be called as often as one likes: from time to time it looks whether the claim is lost."""
        last = time.monotonic()

        def check() -> None:
            nonlocal last
            if time.monotonic() - last > self.claimant.every:
                last = time.monotonic()
                self.lease.check()

        return check

    def _asked(self, lock: Callable[[], bool]) -> bool:
        """What the lock says; where the folder knows no locks, the lease alone decides."""
        try:
            return not self.claimant.locks or lock()
        except StoreError as error:
            if error.problems[0].code != "no-locks":
                raise
            self.claimant = replace(self.claimant, locks=False)
            self.lease = Lease(self.path.parent, self.claimant)
            return True

    def __enter__(self) -> Self:
        self.acquire()
        self.keep()
        return self

    def __exit__(self, *raised: type[BaseException] | BaseException | TracebackType | None) -> None:
        self.release()
