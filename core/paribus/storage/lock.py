"""Who works on a folder: a lock that its holder's death releases, and that names the holder to everybody else."""

from __future__ import annotations

import errno
import fcntl
import json
import os
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Final, Self, final

from paribus.errors import Problem, StoreError

_MOST_BYTES: Final = 4096
_LOCKLESS: Final = (errno.ENOLCK, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS)  # a network's folder, as a rule


@final
@dataclass(frozen=True)
class Owner:
    """A process that holds a lock."""

    host: str
    pid: int
    since: str  # UTC, to the second

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host} since {self.since}"


@final
class Lock:
    """An advisory lock on a file, for the processes of one host: `flock`, which the kernel drops when its holder dies.

    The file stays where it is after the release; to remove it would let two processes each lock a file of that name.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._descriptor: int | None = None

    def try_acquire(self) -> bool:
        """Take the lock if nobody holds it, and say whether it is ours now."""
        if self._descriptor is not None:
            return True
        try:
            descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        except OSError as error:
            raise self._unusable(error) from error
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            return False
        except OSError as error:
            os.close(descriptor)
            raise self._unusable(error) from error
        self._descriptor = descriptor
        # A forked child (a data worker) shares the lock: were it to outlive us, the lock would outlive us too.
        os.register_at_fork(after_in_child=self.release)
        _sign(descriptor)
        return True

    def free(self) -> bool:
        """Whether nobody has it, without taking it: nothing is made or written."""
        try:
            descriptor = os.open(self.path, os.O_RDWR | os.O_CLOEXEC)
        except FileNotFoundError:
            return True
        except OSError as error:
            raise self._unusable(error) from error
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        except OSError as error:
            raise self._unusable(error) from error
        finally:
            os.close(descriptor)
        return True

    def acquire(self) -> None:
        """Take the lock, or raise an error that names its holder. It never waits."""
        if not self.try_acquire():
            holder = self.owner() or "another process"
            raise StoreError(
                Problem(
                    code="held",
                    where=str(self.path),
                    what=f"held by {holder}; wait until it has ended, or end it first",
                )
            )

    def release(self) -> None:
        """Give the lock back. Closing, and not unlocking: in a forked child, that leaves the parent's lock alone."""
        if self._descriptor is not None:
            descriptor, self._descriptor = self._descriptor, None
            os.close(descriptor)

    def owner(self) -> Owner | None:
        """Who took the lock last; nobody where that is not to be read. Only a failed `try_acquire` says it is held."""
        try:
            with self.path.open("rb") as file:
                found = json.loads(file.read(_MOST_BYTES))
            return Owner(host=str(found["host"]), pid=int(found["pid"]), since=str(found["since"]))
        except (OSError, ValueError, TypeError, KeyError, RecursionError):
            return None

    def __enter__(self) -> Self:
        self.acquire()
        return self

    def __exit__(self, *raised: type[BaseException] | BaseException | TracebackType | None) -> None:
        self.release()

    def _unusable(self, error: OSError) -> StoreError:
        what = f"this file could not be locked: {error.strerror or error}; use a writable folder on a local disk"
        code = "no-locks" if error.errno in _LOCKLESS else "cannot-lock"
        return StoreError(Problem(code=code, where=str(self.path), what=what))


def _sign(descriptor: int) -> None:
    """Write who we are into the lock's file."""
    since = datetime.now(UTC).isoformat(timespec="seconds")
    owner = Owner(host=os.uname().nodename, pid=os.getpid(), since=since)
    with suppress(OSError):  # on a full disk the lock is held all the same
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, json.dumps(asdict(owner)).encode(), 0)
