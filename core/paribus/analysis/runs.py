"""Sets of trials read from folders without a study, and the conditions that two sets must share."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, final

from paribus.analysis.costs import machine_key
from paribus.analysis.formatting import MAX_NAMES, clean
from paribus.analysis.trials import TrialEntry
from paribus.errors import NotComparableError, Problem, StoreError, join_names
from paribus.planning.comparability import conditions
from paribus.planning.identity import identity_of
from paribus.program.input_files import PREFIX
from paribus.specs.program_spec import is_program
from paribus.storage.atomic import read_json
from paribus.storage.saved_model import RECORD, TRIAL, find_model

CODE_DIGITS: Final = 12  # digits of a code hash that are shown
MIN_CODE_DIGITS: Final = 6  # digits that `NAME@CODE` needs at least
PREVIOUS: Final = "previous"
MAX_CHANGES: Final = 6
# Two single trials may have different specs, so conditions that concern only the specs are not checked.
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
    is_single: bool  # a trial was named, not a folder of trials
    trials: Mapping[Key, TrialEntry]
    notes: tuple[str, ...] = ()


def load_trial_set(text: str, store: Path) -> TrialSet | None:
    """Return the trials that `text` names: folder or identity of a trial, a folder of trials, or a study of the store.

    `NAME@CODE` selects the records of one code, `NAME@previous` for each trial the latest record of an earlier code.
    Return None if `text` names no trials.
    """
    name, code = (text, "") if os.path.lexists(text) or "@" not in text else text.rsplit("@", 1)
    try:
        path = find_model(name, store)
        if (path / RECORD).is_file():
            entry = _read_entry(path)
            trials = {(spec_key(entry.spec), entry.seed): entry}
            return TrialSet(name=clean(str(path)), is_single=True, trials=trials)
        for folder in (path, store / name):
            if folder.is_dir() and any(child.is_dir() for child in folder.iterdir()):
                return _trial_set(folder, code)
    except (OSError, ValueError):
        return None
    return None


def spec_key(spec: Mapping[str, Any]) -> str:
    """Return a digest of a spec without its seed and without the identity of the trial that it starts from."""
    source = spec.get("from")
    common = {**spec, "seed": 0, **({"from": {**source, "trial": ""}} if isinstance(source, Mapping) else {})}
    return identity_of(common, "", "")


def _read_entry(folder: Path) -> TrialEntry:
    """Return the trial of a folder with a record; a `StoreError` if the record is damaged."""
    record = read_json(folder / RECORD)
    planned_trial = read_json(folder / TRIAL) if (folder / TRIAL).is_file() else {}
    try:
        document = {"identity": record["identity"], "spec": record["spec"], "changes": {}, **planned_trial}
        return TrialEntry(
            variant=str(document.get("variant") or "trial"),
            seed=int(record["spec"]["seed"]),
            trial=document,
            record=record,
            state=record["result"]["state"],
        )
    except (KeyError, TypeError, ValueError) as error:
        message = f"this file is not the record of a trial: {type(error).__name__} {error}"
        raise StoreError(Problem(code="damaged", location=str(folder / RECORD), message=message)) from error


def _trial_set(folder: Path, code: str) -> TrialSet:
    """Return the latest record of each spec and seed, of one code if given; notes name damaged records."""
    entries_by_key: dict[Key, list[TrialEntry]] = {}
    damaged: list[str] = []
    for subfolder in sorted(folder.iterdir()):
        if not (subfolder / RECORD).is_file():
            continue
        try:
            entry = _read_entry(subfolder)
        except StoreError as error:
            damaged.append(f"Skipped: {clean(error.problems[0].message)} ({clean(subfolder.name)})")
            continue
        entries_by_key.setdefault((spec_key(entry.spec), entry.seed), []).append(entry)
    codes = list(dict.fromkeys(_code(entry) for versions in entries_by_key.values() for entry in versions))
    if code:
        entries_by_key = {
            key: matching for key, versions in entries_by_key.items() if (matching := _entries_of_code(versions, code))
        }
    if not entries_by_key:
        suffix = f" of the code {clean(code)}" if code != PREVIOUS else " of an earlier code"
        message = f"`{folder}` has no record" + (suffix if code else "")
        valid = (
            f"the codes {join_names((digest[:CODE_DIGITS] for digest in codes), MAX_NAMES)}"
            if codes
            else "a folder of trials"
        )
        raise NotComparableError(Problem(code="no-records", message=message, valid=valid))
    count = sum(len(versions) > 1 for versions in entries_by_key.values())
    notes = [
        f"Of {count} trials with records of several codes, the latest is used; NAME@previous is the one before"
    ] * bool(count)
    latest = {key: max(versions, key=_ended) for key, versions in entries_by_key.items()}
    label = f"{clean(str(folder))}{f'@{clean(code)}' if code else ''}"
    return TrialSet(name=label, is_single=False, trials=latest, notes=(*damaged[:MAX_NAMES], *notes))


def _ended(entry: TrialEntry) -> float:
    return float(entry.provenance.get("ended") or 0)


def _code(entry: TrialEntry) -> str:
    return str(entry.trial.get("code") or "unknown")


def _entries_of_code(versions: Sequence[TrialEntry], code: str) -> list[TrialEntry]:
    if code == PREVIOUS:
        latest = _code(max(versions, key=_ended))
        return [entry for entry in versions if _code(entry) != latest]
    return [entry for entry in versions if len(code) >= MIN_CODE_DIGITS and _code(entry).startswith(code)]


def environment_changes(pairs: Sequence[Pair]) -> Iterator[str]:
    """Yield a line each for code, data, versions and machine: the change, or that it is the same."""
    yield f"code:     {_code_changes(pairs)}"
    readers: tuple[tuple[str, Callable[[TrialEntry], Any]], ...] = (
        ("data", _data_text),
        ("versions", _versions_text),
        ("machine", lambda entry: " ".join(value for _, value in machine_key(entry)) or "unknown"),
    )
    for name, read in readers:
        baseline, candidate = (list(dict.fromkeys(clean(read(pair[side])) for pair in pairs)) for side in (0, 1))
        if baseline == candidate:
            text = f"the same ({join_names(baseline, MAX_CHANGES)})"
        elif name == "versions" and len(baseline) == len(candidate) == 1:
            text = _version_changes(pairs[0])
        else:
            text = f"{join_names(baseline, MAX_CHANGES)} → {join_names(candidate, MAX_CHANGES)}"
        yield f"{name + ':':9} {text}"


def _code_changes(pairs: Sequence[Pair]) -> str:
    """Describe changes of code by variant, as a record has one hash of the code of all components of its trial."""
    changes: dict[str, None] = {}
    hashes = [[str(entry.trial.get("code") or "unknown")[:CODE_DIGITS] for entry in pair] for pair in pairs]
    for (_, candidate), (old, new) in zip(pairs, hashes, strict=True):
        if old != new:
            changes[f"{clean(candidate.variant)} {old} → {new}"] = None
    if not changes:
        return f"the same ({join_names(dict.fromkeys(old for old, _ in hashes), MAX_CHANGES)})"
    variants = {entry.variant for _, entry in pairs}
    unchanged = f"; the same for {len(variants) - len(changes)} more" if len(variants) > len(changes) else ""
    return f"{join_names(changes, MAX_CHANGES)}{unchanged}"


def _data_text(entry: TrialEntry) -> str:
    if is_program(entry.spec):
        return f"files {join_names(entry.certificate['inputs'], MAX_CHANGES) or 'unknown'}".replace(PREFIX, "")
    data = entry.result["data"]
    return f"corpus {str(data['corpus'])[:CODE_DIGITS]}, tokenizer {str(data['tokenizer'])[:CODE_DIGITS]}"


def _versions_text(entry: TrialEntry) -> str:
    return ", ".join(f"{name} {version}" for name, version in (entry.provenance.get("versions") or {}).items())


def _version_changes(pair: Pair) -> str:
    """Describe the versions that differ between the trials of a pair."""
    baseline, candidate = (entry.provenance.get("versions") or {} for entry in pair)
    changes = [
        f"{clean(name)} {clean(str(baseline.get(name, 'none')))} → {clean(str(candidate.get(name, 'none')))}"
        for name in dict.fromkeys([*baseline, *candidate])
        if baseline.get(name) != candidate.get(name)
    ]
    return join_names(changes, MAX_CHANGES)


def check_same_conditions(pairs: Sequence[Pair], *, across: bool, strict: bool = False) -> list[str]:
    """Return warnings; raise a `NotComparableError` if pairs differ in data, budget or machine, unless `across`.

    A different processor or number of threads is an error with `strict`, else a warning.
    """
    checked = conditions(pairs[0][0]) if pairs else ()
    machine_differences = [
        f"before and after differ in {condition.subject}: {join_names(lines, MAX_CHANGES)}"
        for condition in checked
        if condition.withholds == "strict verdicts" and condition.recorded is not None
        if (lines := [f"{old} against {new}" for old, new in _differing_values(pairs, condition.recorded)])
    ]
    problems = [
        Problem(
            code=condition.code,
            message=f"before and after differ in {condition.subject}: {join_names(lines, MAX_CHANGES)}",
            valid=_VALID,
        )
        for condition in checked
        if condition.code in _CODES and condition.recorded is not None and condition.metrics != "per byte"
        if (
            lines := [
                f"{_short(before)} against {_short(after)}"
                for before, after in _differing_values(pairs, condition.recorded)
            ]
        )
    ]
    if strict and machine_differences:
        problems.append(Problem(code="mixed-machines", message="; ".join(machine_differences), valid=_VALID))
    if problems and not across:
        raise NotComparableError(*problems)
    summary = "; ".join(problem.message for problem in problems)
    allowed = [f"ACROSS MACHINES: {summary}: the differences below may not come from the code"] if problems else []
    return [*allowed, *(f"{line}: it rounds sums in another order" for line in ([] if strict else machine_differences))]


def _differing_values(pairs: Sequence[Pair], read: Callable[[TrialEntry], Any]) -> list[tuple[Any, Any]]:
    """Return the values that differ between the two sides of a pair, each pair of values once."""
    values: list[tuple[Any, Any]] = []
    for pair in pairs:
        baseline, candidate = map(read, pair)
        if baseline != candidate and (baseline, candidate) not in values:
            values.append((baseline, candidate))
    return values


def _short(value: Any) -> str:
    """Return a value as text, with the first digits of each digest."""
    parts = value if isinstance(value, list) else [value]
    return ", ".join(clean(str(part))[:CODE_DIGITS] for part in parts)
