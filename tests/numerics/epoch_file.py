"""The file `epochs.json` of a tree, and the commits at which its epochs began."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple, final

FILE: Final = Path("core/paribus/storage/epochs.json")


@final
class NoHistoryError(Exception):
    """The history of git lacks the commit at which an epoch began."""


class EpochEntry(NamedTuple):
    """One epoch: what changed at its beginning, its engines, and the golden trials that differed from before."""

    epoch: int
    changed: str
    engines: tuple[str, ...]
    differs: tuple[str, ...] = ()

    @classmethod
    def from_json(cls, item: Any) -> EpochEntry:
        return cls(item["epoch"], item["changed"], tuple(item["engines"]), tuple(item.get("differs", ())))

    def to_json(self) -> dict[str, Any]:
        document = self._asdict()
        return document if self.differs else {key: document[key] for key in document if key != "differs"}

    def with_engine(self, engine: str) -> EpochEntry:
        """Return this epoch with one more engine."""
        return self._replace(engines=(*self.engines, engine))


class Begin(NamedTuple):
    """The commit at which an epoch began."""

    epoch: int
    commit: str


@final
class EpochFile:
    """Epochs of a tree."""

    def __init__(self, tree: Path) -> None:
        self.tree = tree
        self.path = tree / FILE
        self.entries = _entries(self.path.read_text(encoding="utf-8"))

    def write(self, entries: Sequence[EpochEntry]) -> None:
        """Write the epochs, with one engine a line."""
        self.entries = list(entries)
        document = [entry.to_json() for entry in entries]
        self.path.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")

    def begin(self) -> Begin:
        """Return the first commit with the latest epoch, or where none has it yet, with the one before."""
        latest = self.entries[-1].epoch
        numbers = {commit: self._committed_numbers(commit) for commit in self._commits()}
        for epoch in (latest, latest - 1):
            commit = next((commit for commit, committed in numbers.items() if epoch in committed), None)
            if commit is not None:
                return Begin(epoch, commit)
        message = f"no commit has the beginning of epoch {latest}"
        raise NoHistoryError(f"{message}: `make numerics` needs a clone with its whole history (git fetch --unshallow)")

    def _commits(self) -> list[str]:
        """Return the commits that changed the file, the first of them first."""
        return self._git("log", "--format=%H", "--reverse", "--topo-order", "--", str(FILE)).split()

    def _committed_numbers(self, commit: str) -> set[int]:
        try:
            return {entry.epoch for entry in _entries(self._git("show", f"{commit}:{FILE}"))}
        except NoHistoryError:  # a commit that removed the file
            return set()

    def _git(self, *arguments: str) -> str:
        try:
            result = subprocess.run(
                ["git", "-C", str(self.tree), *arguments], capture_output=True, text=True, check=True
            )
        except (OSError, subprocess.CalledProcessError) as error:
            reason = getattr(error, "stderr", "") or str(error)
            message = f"git cannot read the history of {self.tree} ({reason.strip()})"
            raise NoHistoryError(f"{message}: `make numerics` needs a clone with its whole history") from error
        return result.stdout


def _entries(text: str) -> list[EpochEntry]:
    return [EpochEntry.from_json(item) for item in json.loads(text)]
