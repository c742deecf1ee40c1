"""Trials read from folders, without a study: one trial, or those of a store, of one code or of several."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, final

from paribus.analysis.formatting import clean
from paribus.analysis.select_trials import CODE_DIGITS, MIN_CODE_DIGITS
from paribus.analysis.trials import TrialEntry
from paribus.errors import NotComparableError, Problem, StoreError, join_names
from paribus.planning.identity import identity_of
from paribus.storage.atomic import read_json
from paribus.storage.saved_model import RECORD, find_model
from paribus.storage.store import TRIAL

MOST: Final = 8
PREVIOUS: Final = "previous"
Key = tuple[str, int]  # a spec whatever its seed, and the seed


@final
@dataclass(frozen=True, kw_only=True)
class TrialSet:
    """The trials on one side of a comparison."""

    name: str
    is_single: bool  # one trial, and not a folder of them
    trials: Mapping[Key, TrialEntry]
    notes: tuple[str, ...] = ()


def load_trial_set(text: str, store: Path) -> TrialSet | None:
    """Return the trials that `text` names: a trial's folder or identity, a folder, or a study of the store; else None.

    `NAME@previous` selects the record before that of the latest code for each trial, `NAME@CODE` that of one code.
    """
    name, code = (text, "") if os.path.lexists(text) or "@" not in text else text.rsplit("@", 1)
    try:
        place = find_model(name, store)
        if (place / RECORD).is_file():
            return TrialSet(name=clean(str(place)), is_single=True, trials=_one(_entry(place)))
        for folder in (place, store / name):
            if folder.is_dir() and any(path.is_dir() for path in folder.iterdir()):
                return _set(folder, code)
    except (OSError, ValueError):
        return None
    return None


def _one(entry: TrialEntry) -> dict[Key, TrialEntry]:
    return {(spec_key(entry.spec), entry.seed): entry}


def spec_key(spec: Mapping[str, Any]) -> str:
    """Return a digest of a spec, independent of its seed and of the code of the trial that it begins from."""
    began = spec.get("from")
    plain = {**spec, "seed": 0, **({"from": {**began, "trial": ""}} if isinstance(began, Mapping) else {})}
    return identity_of(plain, "", "")


def _entry(folder: Path) -> TrialEntry:
    record = read_json(folder / RECORD)
    document_file = read_json(folder / TRIAL) if (folder / TRIAL).is_file() else {}
    try:
        document = {"identity": record["identity"], "spec": record["spec"], "changes": {}, **document_file}
        return TrialEntry(
            variant=str(document.get("variant") or "trial"),
            seed=int(record["spec"]["seed"]),
            trial=document,
            record=record,
            state=record["result"]["state"],
        )
    except (KeyError, TypeError, ValueError) as error:
        message = f"this is the record of no trial: {type(error).__name__} {error}"
        raise StoreError(Problem(code="damaged", location=str(folder / RECORD), message=message)) from error


def _set(folder: Path, code: str) -> TrialSet:
    """Return the latest record of each spec and seed; damaged records, and those of other code, are named."""
    entries_by_key: dict[Key, list[TrialEntry]] = {}
    damaged: list[str] = []
    for subfolder in _folders(folder):
        try:
            entry = _entry(subfolder)
        except StoreError as error:
            damaged.append(f"Left out: {clean(error.problems[0].message)} ({clean(subfolder.name)})")
            continue
        entries_by_key.setdefault((spec_key(entry.spec), entry.seed), []).append(entry)
    codes = list(dict.fromkeys(_code(entry) for versions in entries_by_key.values() for entry in versions))
    if code:
        entries_by_key = {
            key: matching for key, versions in entries_by_key.items() if (matching := _chosen(versions, code))
        }
    if not entries_by_key:
        suffix = f" of the code {clean(code)}" if code != PREVIOUS else " of an earlier code"
        message = f"`{folder}` has no record" + (suffix if code else "")
        valid = (
            f"the codes {join_names((subfolder[:CODE_DIGITS] for subfolder in codes), MOST)}"
            if codes
            else "a folder of trials"
        )
        raise NotComparableError(Problem(code="no-records", message=message, valid=valid))
    several = sum(len(versions) > 1 for versions in entries_by_key.values())
    notes = [
        f"Of {several} trials with records of several codes the latest is taken; NAME@previous is the one before"
    ] * bool(several)
    latest = {key: max(versions, key=_ended) for key, versions in entries_by_key.items()}
    label = f"{clean(str(folder))}{f'@{clean(code)}' if code else ''}"
    return TrialSet(name=label, is_single=False, trials=latest, notes=(*damaged[:MOST], *notes))


def _folders(folder: Path) -> Iterator[Path]:
    yield from (subfolder for subfolder in sorted(folder.iterdir()) if (subfolder / RECORD).is_file())


def _ended(entry: TrialEntry) -> float:
    return float(entry.provenance.get("ended") or 0)


def _code(entry: TrialEntry) -> str:
    return str(entry.trial.get("code") or "unknown")


def _chosen(versions: Sequence[TrialEntry], code: str) -> list[TrialEntry]:
    if code == PREVIOUS:
        latest = _code(max(versions, key=_ended))
        return [entry for entry in versions if _code(entry) != latest]
    return [entry for entry in versions if len(code) >= MIN_CODE_DIGITS and _code(entry).startswith(code)]
