"""Store of a study: one folder per trial, `runs/<study>/<identity>`, whose files are written atomically."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, final

from paribus.errors import Problem, StoreError
from paribus.storage.atomic import (
    FILES,
    DamagedError,
    Files,
    append_line,
    make_folder,
    quarantine,
    read_json,
    write_json,
)
from paribus.storage.engine import numbers_of_engine
from paribus.storage.lease import HostIdentity
from paribus.storage.lease import host_identity as this_machine
from paribus.storage.lock import TrialLock
from paribus.storage.record_shape import shape_faults
from paribus.storage.saved_model import RECORD, RUNS, TRIAL

FAILURE = "failure.json"
PROGRESS = "progress.jsonl"
LOG = "log.txt"
LOG_HINT = "; its log: "
CHECKPOINTS = "checkpoints"  # folder of a trial
LOGS = "logs"  # output of loggers, for all trials
LOOKS = "looks.jsonl"
REHEARSALS = "rehearsals"  # first steps in other processes, by identity
STORE = RUNS

State = Literal["pending", "running", "done", "diverged", "failed", "out-of-memory", "timeout", "interrupted"]
FINISHED: tuple[State, ...] = ("done", "diverged")


@final
@dataclass(frozen=True)
class Trial:
    """Resolved spec of a study with one seed; the mappings have dotted keys of the spec."""

    identity: str
    variant: str
    seed: int
    spec: Mapping[str, Any]
    changes: Mapping[str, Any]  # values that the variant changes in the base spec
    code: str
    corpus: str
    matched_values: Mapping[str, Any] = field(default_factory=dict)  # options that were set to match a budget
    stage: str = ""  # `finetune/sections`
    parent_id: str = ""  # identity of the trial whose weights this one starts from
    setting: str = ""  # first setting that has this trial; not part of the identity
    budget_values: Mapping[str, Any] = field(default_factory=dict)  # options that the budget sets
    baseline_values: Mapping[str, Any] = field(default_factory=dict)  # baseline's values of `changes`, if not the base
    components: Mapping[str, str] = field(default_factory=dict)  # hashes of code and values, by slot.name
    effects: Mapping[str, Sequence[str]] = field(default_factory=dict)  # what options of a program change on purpose
    plugins: Mapping[str, Mapping[str, str]] = field(default_factory=dict)  # of components, where one is not built in

    @property
    def label(self) -> str:
        """Name of the trial in messages: `attention=mqa, pretrain, seed 0`."""
        return ", ".join(filter(None, (self.variant, self.setting, self.stage, f"seed {self.seed}")))

    def document(self) -> dict[str, Any]:
        return {
            "identity": self.identity,
            "variant": self.variant,
            "seed": self.seed,
            "spec": dict(self.spec),
            "changes": dict(self.changes),
            "matched_values": dict(self.matched_values),
            "code": self.code,
            "components": dict(self.components),
            "engine": numbers_of_engine(),
            "corpus": self.corpus,
            **({"stage": self.stage, "parent_id": self.parent_id} if self.stage else {}),
            **({"setting": self.setting} if self.setting else {}),
            **({"budget_values": dict(self.budget_values)} if self.budget_values else {}),
            **({"baseline_values": dict(self.baseline_values)} if self.baseline_values else {}),
            **({"effects": dict(self.effects)} if self.effects else {}),
            **({"plugins": dict(self.plugins)} if self.plugins else {}),
        }


@final
class Store:
    """Folder of one study: its trials, records and logs."""

    def __init__(
        self,
        root: Path,
        study: str,
        files: Files = FILES,
        host: HostIdentity | None = None,
        *,
        read_only: bool = False,
    ) -> None:
        """With `read_only`, damaged files are reported and left in place."""
        self.root = root / study
        self.read_only = read_only
        self.files = files
        self.host = host or this_machine()
        self.messages: list[str] = []  # damaged files that were set aside

    def folder(self, identity: str) -> Path:
        """Return the folder of a trial; a symbolic link in its place is an error."""
        return refuse_link(self.root / identity)

    def create_folder(self, trial: Trial) -> Path:
        """Create the folder of a trial with its `trial.json`."""
        folder = self.folder(trial.identity)
        make_folder(folder, files=self.files)
        if self._read(folder / TRIAL) is None:
            write_json(folder / TRIAL, trial.document(), files=self.files)
        return folder

    def record(self, identity: str) -> dict[str, Any] | None:
        """Return the record of a trial; a damaged one is set aside, and the trial counts as not run."""
        record = self._read(self.folder(identity) / RECORD)
        if record is None:
            return None
        if fault := next(shape_faults(record), ""):
            self._set_aside(self.folder(identity) / RECORD, f"{self.folder(identity) / RECORD}: {fault}")
        elif record["identity"] != identity:
            self._set_aside(self.folder(identity) / RECORD, "this record belongs to another trial")
        else:
            return record
        return None

    def failure(self, identity: str) -> dict[str, Any] | None:
        return self._read(self.folder(identity) / FAILURE)

    def write_failure(self, identity: str, state: State, reason: str, **details: Any) -> None:
        """Write the state of a trial that ended without a record."""
        write_json(self.folder(identity) / FAILURE, {"state": state, "reason": reason, **details}, files=self.files)

    def log_hint(self, identity: str) -> str:
        """Return `; its log: PATH` for the end of a message, if the trial has a log."""
        log = self.folder(identity) / LOG
        return f"{LOG_HINT}{log}" if log.is_file() else ""

    def lock(self, identity: str) -> TrialLock:
        return TrialLock(self.folder(identity), self.host)

    def state(self, identity: str) -> State:
        """Return the state of a trial; it is running if a process has locked it."""
        record = self.record(identity)
        if record is not None:
            state: State = record["result"]["state"]
            return state
        if not self.folder(identity).is_dir():
            return "pending"
        if not self.lock(identity).is_free():
            return "running"
        failure = self.failure(identity)
        if failure is None:  # a process that was killed leaves none
            folder = self.folder(identity)
            has_ended = any(folder.glob(f"{RECORD}*"))  # its record is damaged
            return "interrupted" if (folder / PROGRESS).is_file() and not has_ended else "pending"
        ended: State = failure["state"]
        return ended

    def records(self) -> Iterator[dict[str, Any]]:
        """Yield all intact records in the folder, earlier variants of the study included."""
        if not self.root.is_dir():
            return
        for folder in sorted(self.root.iterdir()):
            if folder.is_symlink():  # an error only where a trial of the study needs it
                continue
            record = self.record(folder.name) if (folder / RECORD).is_file() else None
            if record is not None:
                yield record

    def document(self, *names: str) -> dict[str, Any] | None:
        """Return a JSON document of the study; a damaged one is set aside."""
        return self._read(self.root.joinpath(*names))

    def rehearsal(self, identity: str) -> dict[str, Any] | None:
        """Return the first step of a trial in another process and environment."""
        return self._read(self.root / REHEARSALS / f"{identity}.json")

    def write_rehearsal(self, identity: str, document: Mapping[str, Any]) -> None:
        folder = refuse_link(self.root / REHEARSALS)
        make_folder(folder, files=self.files)
        write_json(folder / f"{identity}.json", {"identity": identity, **document}, files=self.files)

    def trial(self, identity: str) -> dict[str, Any] | None:
        """Return the `trial.json` of a trial."""
        return self._read(self.folder(identity) / TRIAL)

    def add_look(self, compared: str, seeds: Sequence[int], stops: Sequence[int] = ()) -> bool:
        """Record the seeds of a verdict that was shown; False where that could not be written.

        `compared` identifies the comparison, as studies of one name share a folder. `stops` are the looks of a study
        that may stop early.
        """
        if (tuple(seeds), tuple(stops)) in self._looks(compared):
            return True
        look = {"comparison": compared, "seeds": list(seeds), **({"stops": list(stops)} if stops else {})}
        return append_line(self.root / LOOKS, json.dumps(look), files=self.files)

    def looks(self, compared: str) -> Iterator[tuple[int, ...]]:
        """Yield the seeds of each verdict that was shown, in order."""
        yield from dict.fromkeys(seeds for seeds, _ in self._looks(compared))

    def has_other_stops(self, compared: str, seeds: Sequence[int], stops: Sequence[int]) -> bool:
        """Return whether a verdict of these seeds was shown with other stops."""
        return any(
            shown_seeds == tuple(seeds) and shown_stops != tuple(stops)
            for shown_seeds, shown_stops in self._looks(compared)
        )

    def _looks(self, compared: str) -> Iterator[tuple[tuple[int, ...], tuple[int, ...]]]:
        """Yield seeds and stops of each look; malformed lines are skipped."""
        try:
            lines = (self.root / LOOKS).read_bytes().splitlines()
        except OSError:
            return
        for line in lines:
            with suppress(ValueError, TypeError, KeyError, RecursionError):
                look = json.loads(line)
                seeds, stops = tuple(look["seeds"]), tuple(look.get("stops") or ())
                if look["comparison"] == compared and all(isinstance(number, int) for number in (*seeds, *stops)):
                    yield seeds, stops

    def _read(self, path: Path) -> dict[str, Any] | None:
        if not refuse_link(path).is_file():
            return None
        try:
            return read_json(path)
        except DamagedError as error:
            self._set_aside(path, str(error))
            return None

    def _set_aside(self, path: Path, reason: str) -> None:
        if self.read_only:
            message = f"{reason}; `paribus run` sets it aside and runs the trial again"
        else:
            message = f"{reason}; set aside as {quarantine(path, files=self.files).name}"
        if message not in self.messages:
            self.messages.append(message)


def refuse_link(path: Path) -> Path:
    """Return a path inside a study's folder, or raise an error if it is a symbolic link, which may lead out of it."""
    if path.is_symlink():
        message = "this is a symbolic link, and paribus follows none inside of a study's folder"
        valid = "the folder or file itself; to use another disk, link the folder of all records (--store)"
        raise StoreError(Problem(code="symbolic-link", location=str(path), message=message, valid=valid))
    return path
