"""Lease on a folder that several machines share: renewed by a heartbeat, and judged by its change.

`lease-000001` names the first owner, `lease-000002` the next. To take a lease, a process creates the file with the next
number: of any number of processes exactly one succeeds (O_EXCL, on NFS as well), and no number is used twice. The owner
counts up in its file. If the count does not change for long enough, by the clock of the observer, the observer may
create the next file; clocks of two machines are never compared. An owner that was only slow finds the next file before
it writes anything.
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

HEARTBEAT_SECONDS: Final = 10.0
LEASE_SECONDS: Final = 60.0
POLL_SECONDS: Final = 1.0  # between two checks of one lease

_HELD: Final = b"held\n"
_FREE: Final = b"free\n"
_NAME: Final = re.compile(r"lease-(\d{6,12})")
_MOST_BYTES: Final = 4096


@final
@dataclass(frozen=True)
class HostIdentity:
    """Machine that takes leases, and the timing of its heartbeat."""

    host: str
    kernel: str  # id of a boot; processes with the same id see each other's `flock`
    has_flock: bool = True  # whether it works in the store's folder
    heartbeat_seconds: float = HEARTBEAT_SECONDS
    lease_seconds: float = LEASE_SECONDS  # without a heartbeat, until others may take over


@cache
def host_identity() -> HostIdentity:
    """Return the identity of this machine."""
    kernel = ""
    with suppress(OSError):
        kernel = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="utf-8").strip()
    host = os.uname().nodename
    return HostIdentity(host, kernel or host)


@final
@dataclass(frozen=True)
class Owner:
    """Process that owns a lock or a lease."""

    host: str
    pid: int
    since: str  # UTC, to the second

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host} since {self.since}"


@final
class LostLeaseError(StoreError):
    """Another process took over the lease, because this one had no heartbeat for too long."""


class LeaseHolder(NamedTuple):
    """Owner of a lease, which may have died."""

    token: str  # changes with every heartbeat
    owner: Owner | None  # None if the file cannot be read, as during its creation
    kernel: str = ""
    lease_seconds: float = LEASE_SECONDS


@final
class Lease:
    """Lease on a folder, for its owner and for observers."""

    def __init__(self, folder: Path, host: HostIdentity) -> None:
        self.folder = folder
        self._host = host
        self._number = 0  # of the owned lease; 0: none
        self._line = b""
        self._heartbeat: subprocess.Popen[bytes] | None = None

    @property
    def is_owned(self) -> bool:
        return self._number > 0

    def holder(self) -> LeaseHolder | None:
        """Return the owner of the lease; None if it is free."""
        numbers = self._numbers()
        if not numbers:
            return None
        try:
            data = self._path(numbers[-1]).read_bytes()[:_MOST_BYTES]
        except FileNotFoundError:  # replaced by the next lease
            self._check_folder()
            return LeaseHolder(f"{numbers[-1]}:", None)
        except OSError as error:
            raise self._unusable(error) from error
        return None if data.endswith(_FREE) else _read(numbers[-1], data)

    def take(self, expired: str = "") -> bool:
        """Take the lease if it is free, and return whether this object owns it now.

        It is free as well if its owner was on this machine, where `flock` protects running owners, or if its token is
        `expired` by the judgement of a `LeaseMonitor`.
        """
        numbers, holder = self._numbers(), self.holder()
        ended = holder is not None and self._host.has_flock and holder.kernel == self._host.kernel
        if holder is not None and not ended and holder.token != expired:
            return False
        number = max(numbers, default=0) + 1
        if not self._create(number):
            return False
        self._check_folder()
        if self._numbers()[-1:] != [number]:  # another process continued from a lease that was not visible here
            self._path(number).unlink(missing_ok=True)
            return False
        self._number = number
        for old in numbers[:-1]:  # the previous lease stays, as its owner looks for the next number
            with suppress(OSError):
                self._path(old).unlink()
        return True

    def start_heartbeat(self) -> None:
        """Start the process that shows that this one is alive."""
        assert self.is_owned
        if self._heartbeat is not None:
            return
        offset = len(self._line)
        command = [sys.executable, "-I", "-S", heartbeat.__file__, str(self._path(self._number).absolute())]
        self._heartbeat = subprocess.Popen(
            [*command, str(offset), str(self._host.heartbeat_seconds), str(os.getpid())],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )

    def check(self) -> None:
        """Raise a `LostLeaseError` if another process took over; called before each write."""
        try:
            is_lost = not self._path(self._number).read_bytes().startswith(self._line)
        except FileNotFoundError:
            self._check_folder()
            is_lost = True
        except OSError as error:
            raise self._unusable(error) from error
        if is_lost or self._path(self._number + 1).exists():
            holder = self.holder()
            owner_text = f"; it is owned by {holder.owner}" if holder is not None and holder.owner is not None else ""
            message = "this process had no heartbeat for too long, and another one took over" + owner_text
            raise LostLeaseError(Problem(code="lease-lost", location=str(self.folder), message=message))

    def release(self) -> None:
        """Release the lease; its file stays, so that its number is not used again."""
        number, self._number = self._number, 0
        if self._heartbeat is not None:
            self._heartbeat.kill()
            self._heartbeat.communicate()
            self._heartbeat = None
        if not number:
            return
        with suppress(OSError):  # then others wait until it expires
            descriptor = os.open(self._path(number), os.O_RDWR | os.O_CLOEXEC)
            try:
                if os.pread(descriptor, len(self._line), 0) == self._line:
                    os.pwrite(descriptor, _FREE, len(self._line) + heartbeat.DIGITS + 1)
            finally:
                os.close(descriptor)

    def _create(self, number: int) -> bool:
        since = datetime.now(UTC).isoformat(timespec="seconds")
        owner = {"host": self._host.host, "pid": os.getpid(), "since": since, "kernel": self._host.kernel}
        timing = {"nonce": secrets.token_hex(8), "patience": self._host.lease_seconds}
        self._line = json.dumps({**owner, **timing}).encode() + b"\n"
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

    def _check_folder(self) -> None:
        """Raise an error if the folder was removed: then no process took over."""
        if not self._numbers():
            message = "this folder was removed; restore it, and run the study again"
            raise StoreError(Problem(code="missing-folder", location=str(self.folder), message=message))

    def _path(self, number: int) -> Path:
        return self.folder / f"lease-{number:06d}"

    def _unusable(self, error: OSError) -> StoreError:
        message = f"cannot take a lease in this folder: {error.strerror or error}; use a writable folder"
        return StoreError(Problem(code="cannot-lock", location=str(self.folder), message=message))


def _read(number: int, data: bytes) -> LeaseHolder:
    line, _, rest = data.partition(b"\n")
    token = f"{number}:{rest[: heartbeat.DIGITS].decode(errors='replace')}"
    try:
        document = json.loads(line)
        owner = Owner(host=str(document["host"]), pid=int(document["pid"]), since=str(document["since"]))
        return LeaseHolder(f"{token}:{document['nonce']}", owner, str(document["kernel"]), float(document["patience"]))
    except (ValueError, TypeError, KeyError, RecursionError):
        return LeaseHolder(token, None)


@final
class _Observation(NamedTuple):
    token: str
    since: float
    has_changed: bool
    checked: float


@final
class LeaseMonitor:
    """Judges whether owners on other machines are alive, by their heartbeats and the clock of this machine."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._observations: dict[Path, _Observation] = {}

    def judge(self, lease: Lease) -> tuple[Literal["free", "alive", "silent", "expired"], str]:
        """Return the state of a lease and its token; `silent` if it was not observed for long enough."""
        holder = lease.holder()
        if holder is None:
            self._observations.pop(lease.folder, None)
            return "free", ""
        now = self._clock()
        observation = self._observations.get(lease.folder)
        if observation is None or observation.token != holder.token:
            has_changed = observation is not None and (
                observation.has_changed or holder.token.startswith(observation.token.partition(":")[0] + ":")
            )
            observation = _Observation(holder.token, now, has_changed, now)
        # Time between two checks does not count if this machine was suspended.
        elif now - observation.checked > holder.lease_seconds / 2:
            observation = observation._replace(since=now, checked=now)
        else:
            observation = observation._replace(checked=now)
        self._observations[lease.folder] = observation
        if now - observation.since > holder.lease_seconds:
            return "expired", holder.token
        return ("alive" if observation.has_changed else "silent"), holder.token
