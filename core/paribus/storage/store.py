"""The store: `runs/<study>/<identity>`, a folder a trial, of which nothing is ever half written."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, final

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
from paribus.storage.lease import HostIdentity
from paribus.storage.lease import host_identity as this_machine
from paribus.storage.saved_model import RECORD, RUNS
from paribus.storage.trial_lock import TrialLock

TRIAL = "trial.json"
FAILURE = "failure.json"
PROGRESS = "progress.jsonl"
LOG = "log.txt"
LOGS = "logs"  # of loggers, of all trials
LOOKS = "looks.jsonl"
STORE = RUNS

State = Literal["pending", "running", "done", "diverged", "failed", "out-of-memory", "timeout", "interrupted"]
FINISHED: tuple[State, ...] = ("done", "diverged")


@final
@dataclass(frozen=True)
class Trial:
    """One spec with one seed, as a study names it."""

    identity: str
    variant: str
    seed: int
    spec: Mapping[str, Any]  # resolved
    varied: Mapping[str, Any]  # dotted key -> value: what this variant changes in the base
    code: str
    corpus: str
    matched: Mapping[str, Any] = field(default_factory=dict)  # dotted key -> value: knobs turned to match a budget
    stage: str = ""  # of a study with stages: `finetune/sections`
    begins: str = ""  # the identity of the trial that it begins from
    setting: str = ""  # the first that has it, of a study with several: no part of who it is
    cut: Mapping[str, Any] = field(default_factory=dict)  # dotted key -> value: where its budget cuts it
    instead: Mapping[str, Any] = field(default_factory=dict)  # where several are varied: what the baseline has there

    @property
    def named(self) -> str:
        """What it is called where people read: `attention=mqa, pretrain, seed 0`."""
        return ", ".join(filter(None, (self.variant, self.setting, self.stage, f"seed {self.seed}")))

    def document(self) -> dict[str, Any]:
        return {
            "identity": self.identity,
            "variant": self.variant,
            "seed": self.seed,
            "spec": dict(self.spec),
            "varied": dict(self.varied),
            "matched": dict(self.matched),
            "code": self.code,
            "corpus": self.corpus,
            **({"stage": self.stage, "begins": self.begins} if self.stage else {}),
            **({"setting": self.setting} if self.setting else {}),
            **({"cut": dict(self.cut)} if self.cut else {}),
            **({"instead": dict(self.instead)} if self.instead else {}),
        }


@final
class Store:
    """The trials of one study, on disk."""

    def __init__(self, root: Path, study: str, files: Files = FILES, claimant: HostIdentity | None = None) -> None:
        self.root = root / study
        self.files = files
        self.claimant = claimant or this_machine()
        self.notes: list[str] = []  # what was found damaged and set aside

    def folder(self, identity: str) -> Path:
        return self.root / identity

    def enter(self, trial: Trial) -> Path:
        """Makes the trial's folder and says in it which trial it is."""
        folder = self.folder(trial.identity)
        make_folder(folder, files=self.files)
        if self._read(folder / TRIAL) is None:
            write_json(folder / TRIAL, trial.document(), files=self.files)
        return folder

    def record(self, identity: str) -> dict[str, Any] | None:
        """The trial's record; a damaged one is set aside, and the trial counts as not run."""
        record = self._read(self.folder(identity) / RECORD)
        if record is not None and record.get("identity") != identity:
            self._set_aside(self.folder(identity) / RECORD, "it is the record of another trial")
            return None
        return record

    def failure(self, identity: str) -> dict[str, Any] | None:
        return self._read(self.folder(identity) / FAILURE)

    def fail(self, identity: str, state: State, why: str, **more: Any) -> None:
        """Writes down how a trial ended that has no record."""
        write_json(self.folder(identity) / FAILURE, {"state": state, "why": why, **more}, files=self.files)

    def logged(self, identity: str) -> str:
        """Where what a trial printed is to be read, as the end of a sentence."""
        log = self.folder(identity) / LOG
        return f"; its log: {log}" if log.is_file() else ""

    def lock(self, identity: str) -> TrialLock:
        return TrialLock(self.folder(identity), self.claimant)

    def state(self, identity: str) -> State:
        """What has become of a trial; a running one is one that somebody holds."""
        record = self.record(identity)
        if record is not None:
            state: State = record["result"]["state"]
            return state
        if not self.folder(identity).is_dir():
            return "pending"
        if not self.lock(identity).free():
            return "running"
        failure = self.failure(identity)
        return failure["state"] if failure is not None else "pending"

    def records(self) -> Iterator[dict[str, Any]]:
        """All whole records of this study, of the variants that it has now and of those that it once had."""
        if not self.root.is_dir():
            return
        for folder in sorted(self.root.iterdir()):
            record = self.record(folder.name) if (folder / RECORD).is_file() else None
            if record is not None:
                yield record

    def document(self, *names: str) -> dict[str, Any] | None:
        """What the study keeps besides its trials; a damaged document is set aside."""
        return self._read(self.root.joinpath(*names))

    def trial(self, identity: str) -> dict[str, Any] | None:
        """What `enter` wrote of a trial."""
        return self._read(self.folder(identity) / TRIAL)

    def looked(self, of: str, seeds: Sequence[int], stops: Sequence[int] = ()) -> None:
        """Keeps with which seeds verdicts were shown, for later ones to tell whether seeds were added since.

        `of` says of what: two studies of one name share a folder, and no trial. `stops` are the looks of a study that
        may stop early.
        """
        if (tuple(seeds), tuple(stops)) not in self._looks(of):
            look = {"of": of, "seeds": list(seeds), **({"stops": list(stops)} if stops else {})}
            append_line(self.root / LOOKS, json.dumps(look), files=self.files)

    def looks(self, of: str) -> Iterator[tuple[int, ...]]:
        """The seeds of each verdict that was shown, the first one first."""
        yield from dict.fromkeys(seeds for seeds, _ in self._looks(of))

    def replanned(self, of: str, seeds: Sequence[int], stops: Sequence[int]) -> bool:
        """Whether a verdict of these seeds was shown that stopped elsewhere, or nowhere."""
        return any(found == tuple(seeds) and other != tuple(stops) for found, other in self._looks(of))

    def _looks(self, of: str) -> Iterator[tuple[tuple[int, ...], tuple[int, ...]]]:
        """The seeds and the stops of each; a line that is none of ours is passed over."""
        try:
            lines = (self.root / LOOKS).read_bytes().splitlines()
        except OSError:
            return
        for line in lines:
            with suppress(ValueError, TypeError, KeyError, RecursionError):
                look = json.loads(line)
                seeds, stops = tuple(look["seeds"]), tuple(look.get("stops") or ())
                if look["of"] == of and all(isinstance(number, int) for number in (*seeds, *stops)):
                    yield seeds, stops

    def _read(self, path: Path) -> dict[str, Any] | None:
        if not path.is_file():
            return None
        try:
            return read_json(path)
        except DamagedError as error:
            self._set_aside(path, str(error))
            return None

    def _set_aside(self, path: Path, why: str) -> None:
        aside = quarantine(path, files=self.files)
        self.notes.append(f"{why}; set aside as {aside.name}")
