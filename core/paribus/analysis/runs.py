"""Sets of trials that are read from folders, without a study, and the conditions that two sets must share."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, final

from paribus.analysis.costs import machine_key
from paribus.analysis.formatting import clean
from paribus.analysis.trials import TrialEntry
from paribus.errors import NotComparableError, Problem, StoreError, join_names
from paribus.planning.comparability import CONDITIONS
from paribus.planning.identity import identity_of
from paribus.storage.atomic import read_json
from paribus.storage.saved_model import RECORD, find_model
from paribus.storage.store import TRIAL

CODE_DIGITS: Final = 12  # digits of a code hash that are shown; as many of them as one likes are accepted
MIN_CODE_DIGITS: Final = 6
MOST: Final = 8
PREVIOUS: Final = "previous"
MAX_CHANGES: Final = 6
# The specs of two single trials may differ, so conditions that only specs show are not checked.
_CODES: Final = frozenset(
    {"other-corpus", "other-tokenizer", "other-validation", "other-steps", "other-versions", "other-machine"}
)
_VALID: Final = "trials of one corpus, one budget and one machine, or --across-machines, which warns above everything"

Key = tuple[str, int]  # a spec whatever its seed, and the seed
Pair = tuple[TrialEntry, TrialEntry]


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
            damaged.append(f"Skipped: {clean(error.problems[0].message)} ({clean(subfolder.name)})")
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
        f"Of {several} trials with records of several codes, the latest is used; NAME@previous is the one before"
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


def environment_changes(pairs: Sequence[Pair]) -> Iterator[str]:
    """Yield a line each for code, data, versions and machine: what changed, or that it is the same."""
    yield f"code:     {_code_changes(pairs)}"
    kinds: tuple[tuple[str, Callable[[TrialEntry], Any]], ...] = (
        ("data", _data_text),
        ("versions", _versions_text),
        ("machine", lambda entry: " ".join(value for _, value in machine_key(entry)) or "unknown"),
    )
    for name, read in kinds:
        baseline, candidate = (list(dict.fromkeys(clean(read(pair[side])) for pair in pairs)) for side in (0, 1))
        if baseline == candidate:
            text = f"the same ({join_names(baseline, MAX_CHANGES)})"
        elif name == "versions" and len(baseline) == len(candidate) == 1:
            text = _version_changes(pairs[0])
        else:
            text = f"{join_names(baseline, MAX_CHANGES)} → {join_names(candidate, MAX_CHANGES)}"
        yield f"{name + ':':9} {text}"


def _code_changes(pairs: Sequence[Pair]) -> str:
    """Describe changes of code by variant: a record has one hash of the code of all components of its trial."""
    moved: dict[str, None] = {}
    hashes = [[str(entry.trial.get("code") or "unknown")[:CODE_DIGITS] for entry in pair] for pair in pairs]
    for (_, candidate), (old, new) in zip(pairs, hashes, strict=True):
        if old != new:
            moved[f"{clean(candidate.variant)} {old} → {new}"] = None
    if not moved:
        return f"the same ({join_names(dict.fromkeys(old for old, _ in hashes), MAX_CHANGES)})"
    variants = {entry.variant for _, entry in pairs}
    some = f"; the same for {len(variants) - len(moved)} more" if len(variants) > len(moved) else ""
    return f"{join_names(moved, MAX_CHANGES)}{some}"


def _data_text(entry: TrialEntry) -> str:
    data = entry.result["data"]
    return f"corpus {str(data['corpus'])[:CODE_DIGITS]}, tokenizer {str(data['tokenizer'])[:CODE_DIGITS]}"


def _versions_text(entry: TrialEntry) -> str:
    return ", ".join(f"{name} {version}" for name, version in (entry.provenance.get("versions") or {}).items())


def _version_changes(pair: Pair) -> str:
    """Describe the versions that differ between the trials of a pair."""
    baseline, candidate = (entry.provenance.get("versions") or {} for entry in pair)
    moved = [
        f"{clean(name)} {clean(str(baseline.get(name, 'none')))} → {clean(str(candidate.get(name, 'none')))}"
        for name in dict.fromkeys([*baseline, *candidate])
        if baseline.get(name) != candidate.get(name)
    ]
    return join_names(moved, MAX_CHANGES)


def check_same_conditions(pairs: Sequence[Pair], *, across: bool, strict: bool = False) -> list[str]:
    """Raise a `NotComparableError` where pairs differ in data, budget or machine; return a warning if `across`.

    Another processor or number of threads is refused only if `strict`, and is a warning otherwise.
    """
    marked = [
        f"before and after differ in {condition.subject}: {join_names(lines, MAX_CHANGES)}"
        for condition in CONDITIONS
        if condition.withholds == "strict verdicts" and condition.recorded is not None
        if (lines := [f"{one} against {other}" for one, other in _unlike(pairs, condition.recorded)])
    ]
    problems = [
        Problem(
            code=condition.code,
            message=f"before and after differ in {condition.subject}: {join_names(lines, MAX_CHANGES)}",
            valid=_VALID,
        )
        for condition in CONDITIONS
        if condition.code in _CODES and condition.recorded is not None and condition.metrics != "per byte"
        if (lines := [f"{_short(one)} against {_short(other)}" for one, other in _unlike(pairs, condition.recorded)])
    ]
    if strict and marked:
        problems.append(Problem(code="mixed-machines", message="; ".join(marked), valid=_VALID))
    if problems and not across:
        raise NotComparableError(*problems)
    summary = "; ".join(problem.message for problem in problems)
    refused = [f"ACROSS MACHINES: {summary}: the differences below may not come from the code"] if problems else []
    return [*refused, *(f"{line}: it rounds sums in another order" for line in ([] if strict else marked))]


def _unlike(pairs: Sequence[Pair], read: Callable[[TrialEntry], Any]) -> Iterator[tuple[Any, Any]]:
    listed_pairs: list[tuple[Any, Any]] = []
    for pair in pairs:
        baseline, candidate = map(read, pair)
        if baseline != candidate and (baseline, candidate) not in listed_pairs:
            listed_pairs.append((baseline, candidate))
            yield baseline, candidate


def _short(value: Any) -> str:
    """Return a value with the first digits of each digest."""
    parts = value if isinstance(value, list) else [value]
    return ", ".join(clean(str(part))[:CODE_DIGITS] for part in parts)
