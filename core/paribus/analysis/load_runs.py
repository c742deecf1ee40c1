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
            if folder.is_dir() and any(each.is_dir() for each in folder.iterdir()):
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
    told = read_json(folder / TRIAL) if (folder / TRIAL).is_file() else {}
    try:
        document = {"identity": record["identity"], "spec": record["spec"], "changes": {}, **told}
        return TrialEntry(
            variant=str(document.get("variant") or "trial"),
            seed=int(record["spec"]["seed"]),
            trial=document,
            record=record,
            state=record["result"]["state"],
        )
    except (KeyError, TypeError, ValueError) as error:
        what = f"this is the record of no trial: {type(error).__name__} {error}"
        raise StoreError(Problem(code="damaged", location=str(folder / RECORD), message=what)) from error


def _set(folder: Path, code: str) -> TrialSet:
    """Return the latest record of each spec and seed; damaged records, and those of other code, are named."""
    found: dict[Key, list[TrialEntry]] = {}
    damaged: list[str] = []
    for each in _folders(folder):
        try:
            entry = _entry(each)
        except StoreError as error:
            damaged.append(f"Left out: {clean(error.problems[0].message)} ({clean(each.name)})")
            continue
        found.setdefault((spec_key(entry.spec), entry.seed), []).append(entry)
    codes = list(dict.fromkeys(_code(entry) for own in found.values() for entry in own))
    if code:
        found = {key: kept for key, own in found.items() if (kept := _chosen(own, code))}
    if not found:
        of = f" of the code {clean(code)}" if code != PREVIOUS else " of an earlier code"
        what = f"`{folder}` has no record" + (of if code else "")
        valid = (
            f"the codes {join_names((each[:CODE_DIGITS] for each in codes), MOST)}" if codes else "a folder of trials"
        )
        raise NotComparableError(Problem(code="no-records", message=what, valid=valid))
    several = sum(len(own) > 1 for own in found.values())
    notes = [
        f"Of {several} trials with records of several codes the latest is taken; NAME@previous is the one before"
    ] * bool(several)
    latest = {key: max(own, key=_ended) for key, own in found.items()}
    label = f"{clean(str(folder))}{f'@{clean(code)}' if code else ''}"
    return TrialSet(name=label, is_single=False, trials=latest, notes=(*damaged[:MOST], *notes))


def _folders(folder: Path) -> Iterator[Path]:
    yield from (each for each in sorted(folder.iterdir()) if (each / RECORD).is_file())


def _ended(entry: TrialEntry) -> float:
    return float(entry.provenance.get("ended") or 0)


def _code(entry: TrialEntry) -> str:
    return str(entry.trial.get("code") or "unknown")


def _chosen(own: Sequence[TrialEntry], code: str) -> list[TrialEntry]:
    if code == PREVIOUS:
        latest = _code(max(own, key=_ended))
        return [entry for entry in own if _code(entry) != latest]
    return [entry for entry in own if len(code) >= MIN_CODE_DIGITS and _code(entry).startswith(code)]
