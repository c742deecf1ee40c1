"""Who works on a folder that several machines share: a lease that is renewed, judged by what others see of it.

`lease-000001` names the first holder, `lease-000002` the next: to take a lease is to create the file with the next
number, which of any number of takers exactly one can (O_EXCL, on NFS as well), and no number is ever given twice. The
holder counts on in its own file; whoever sees the count stand still for long enough, on a clock of its own, may create
the next. No two clocks are compared. A holder that was only slow finds the next file there before it writes anything.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Final, Literal, NamedTuple, final

from paribus.errors import Problem, StoreError
from paribus.storage import heartbeat
from paribus.storage.lock import Owner

HEARTBEAT_SECONDS: Final = 10.0
LEASE_SECONDS: Final = 60.0
POLL_SECONDS: Final = 1.0  # seconds between two looks at one lease

_HELD: Final = b"held\n"
_FREE: Final = b"free\n"
_NAME: Final = re.compile(r"lease-(\d{6,12})")
_MOST_BYTES: Final = 4096


@final
@dataclass(frozen=True)
class HostIdentity:
    """Who takes leases: a machine, and how it shows that it is alive."""

    host: str
    kernel: str  # of one start of one machine; processes that have it in common see each other's `flock`
    has_flock: bool = True  # whether `flock` works in the store's folder
    heartbeat_seconds: float = HEARTBEAT_SECONDS  # seconds between two signs of life
    lease_seconds: float = LEASE_SECONDS  # seconds without one, after which others may take over


@cache
def host_identity() -> HostIdentity:
    """This machine."""
    kernel = ""
    with suppress(OSError):
        kernel = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    host = os.uname().nodename
    return HostIdentity(host, kernel or host)


@final
class LostLeaseError(StoreError):
    """Somebody took over, as nothing was heard of this process for too long: what it does no longer counts."""


class LeaseHolder(NamedTuple):
    """A lease that somebody has, or had when they died."""

    token: str  # another one after every sign of life
    owner: Owner | None  # None where the file cannot be read, as in the moment of its creation
    kernel: str = ""
    lease_seconds: float = LEASE_SECONDS


@final
class Lease:
    """The lease on one folder, as one claimant has it or sees it."""

    def __init__(self, folder: Path, host: HostIdentity) -> None:
        self.folder = folder
        self._host = host
        self._number = 0  # of ours; 0: we have none
        self._line = b""
        self._heart: subprocess.Popen[bytes] | None = None

    @property
    def is_owned(self) -> bool:
        return self._number > 0

    def holder(self) -> LeaseHolder | None:
        """Who has it; None where nobody does."""
        numbers = self._numbers()
        if not numbers:
            return None
        try:
            data = self._path(numbers[-1]).read_bytes()[:_MOST_BYTES]
        except FileNotFoundError:  # the next one is there already
            self._be_there()
            return LeaseHolder(f"{numbers[-1]}:", None)
        except OSError as error:
            raise self._unusable(error) from error
        return None if data.endswith(_FREE) else _read(numbers[-1], data)

    def take(self, expired: str = "") -> bool:
        """Take it if nobody has it, and say whether it is ours now.

        Nobody has it either who had it on this very machine, where a `flock` would tell of the living, or whose `token`
        has been `expired` since a `Watch` saw it.
        """
        numbers, held = self._numbers(), self.holder()
        ended = held is not None and self._host.has_flock and held.kernel == self._host.kernel
        if held is not None and not ended and held.token != expired:
            return False
        number = max(numbers, default=0) + 1
        if not self._create(number):
            return False
        self._be_there()
        if self._numbers()[-1:] != [number]:  # somebody went on from what we had not seen
            self._path(number).unlink(missing_ok=True)
            return False
        self._number = number
        for old in numbers[:-1]:  # the last but one stays: its holder finds ours, whose number follows
            with suppress(OSError):
                self._path(old).unlink()
        return True

    def start_heartbeat(self) -> None:
        """Show from now on that this process lives, as long as it does."""
        assert self.is_owned
        if self._heart is not None:
            return
        offset = len(self._line)
        command = [sys.executable, "-I", "-S", heartbeat.__file__, str(self._path(self._number).absolute())]
        self._heart = subprocess.Popen(
            [*command, str(offset), str(self._host.heartbeat_seconds), str(os.getpid())],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )

    def check(self) -> None:
        """A `LostLeaseError` if somebody has taken over. To be asked before anything is put into its place."""
        try:
            lost = not self._path(self._number).read_bytes().startswith(self._line)
        except FileNotFoundError:
            self._be_there()
            lost = True
        except OSError as error:
            raise self._unusable(error) from error
        if lost or self._path(self._number + 1).exists():
            held = self.holder()
            by = f"; it is run by {held.owner}" if held is not None and held.owner is not None else ""
            what = "nothing was heard of this process for too long, and another took over" + by
            raise LostLeaseError(Problem(code="lease-lost", location=str(self.folder), message=what))

    def release(self) -> None:
        """Give it back. The file stays, so that its number is not given again."""
        number, self._number = self._number, 0
        if self._heart is not None:
            self._heart.kill()
            self._heart.communicate()
            self._heart = None
        if not number:
            return
        with suppress(OSError):  # then others have to wait until it has expired
            descriptor = os.open(self._path(number), os.O_RDWR | os.O_CLOEXEC)
            try:
                if os.pread(descriptor, len(self._line), 0) == self._line:
                    os.pwrite(descriptor, _FREE, len(self._line) + heartbeat.DIGITS + 1)
            finally:
                os.close(descriptor)

    def _create(self, number: int) -> bool:
        since = datetime.now(UTC).isoformat(timespec="seconds")
        who = {"host": self._host.host, "pid": os.getpid(), "since": since, "kernel": self._host.kernel}
        more = {"nonce": secrets.token_hex(8), "patience": self._host.lease_seconds}
        self._line = json.dumps({**who, **more}).encode() + b"\n"
        path = self._path(number)
        try:
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
        except FileExistsError:
            return False
        except OSError as error:
            raise self._unusable(error) from error
        try:
            os.write(descriptor, self._line + b"0" * heartbeat.DIGITS + b"\n" + _HELD)
        except OSError as error:
            with suppress(OSError):
                path.unlink()
            raise self._unusable(error) from error
        finally:
            os.close(descriptor)
        return True

    def _numbers(self) -> list[int]:
        try:
            matches = map(_NAME.fullmatch, os.listdir(self.folder))  # noqa: PTH208  # names are enough
            return sorted(int(match[1]) for match in matches if match)
        except FileNotFoundError:
            return []
        except OSError as error:
            raise self._unusable(error) from error

    def _be_there(self) -> None:
        """A folder that was taken away, and perhaps made anew, was taken over by nobody."""
        if not self._numbers():
            what = "this folder was taken away; bring it back, and run it again"
            raise StoreError(Problem(code="no-folder", location=str(self.folder), message=what))

    def _path(self, number: int) -> Path:
        return self.folder / f"lease-{number:06d}"

    def _unusable(self, error: OSError) -> StoreError:
        what = f"no lease could be taken in this folder: {error.strerror or error}; use a writable folder"
        return StoreError(Problem(code="cannot-lock", location=str(self.folder), message=what))


def _read(number: int, data: bytes) -> LeaseHolder:
    line, _, rest = data.partition(b"\n")
    token = f"{number}:{rest[: heartbeat.DIGITS].decode(errors='replace')}"
    try:
        found = json.loads(line)
        owner = Owner(host=str(found["host"]), pid=int(found["pid"]), since=str(found["since"]))
        return LeaseHolder(f"{token}:{found['nonce']}", owner, str(found["kernel"]), float(found["patience"]))
    except (ValueError, TypeError, KeyError, RecursionError):
        return LeaseHolder(token, None)


@final
class _Seen(NamedTuple):
    token: str
    since: float
    moved: bool
    looked: float


@final
class LeaseMonitor:
    """Whether holders on other machines live, by the signs that they give, and by the clock of whoever watches."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._seen: dict[Path, _Seen] = {}

    def judge(self, lease: Lease) -> tuple[Literal["free", "alive", "silent", "expired"], str]:
        """What is known, and the token of which it is known. `silent`: it was not watched for long enough to tell."""
        held = lease.holder()
        if held is None:
            self._seen.pop(lease.folder, None)
            return "free", ""
        now = self._clock()
        seen = self._seen.get(lease.folder)
        if seen is None or seen.token != held.token:
            moved = seen is not None and (seen.moved or held.token.startswith(seen.token.partition(":")[0] + ":"))
            seen = _Seen(held.token, now, moved, now)
        # A watcher that slept through the time has seen nothing: only its looks count, not what lies between them.
        elif now - seen.looked > held.lease_seconds / 2:
            seen = seen._replace(since=now, looked=now)
        else:
            seen = seen._replace(looked=now)
        self._seen[lease.folder] = seen
        if now - seen.since > held.lease_seconds:
            return "expired", held.token
        return ("alive" if seen.moved else "silent"), held.token
