"""What lies between two sets of trials besides their results: code, data, versions and machines. It is said first."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

from paribus.errors import NotComparableError, Problem, listed
from paribus.report.trials.costs import machine
from paribus.report.trials.entry import Entry
from paribus.report.trials.select import SHORT
from paribus.report.verdicts.held import RUNTIME
from paribus.report.words import clean

Pair = tuple[Entry, Entry]
MOST: Final = 6
_VALID: Final = "trials of one corpus, one budget and one machine, or --across-machines, which warns above everything"


def changed(pairs: Sequence[Pair]) -> Iterator[str]:
    """A line each for code, data, versions and machine: what it was and has become, or that it is the same."""
    yield f"code:     {_code(pairs)}"
    kinds: tuple[tuple[str, Callable[[Entry], Any]], ...] = (
        ("data", _data),
        ("versions", _versions),
        ("machine", lambda entry: " ".join(value for _, value in machine(entry)) or "unknown"),
    )
    for name, of in kinds:
        before, after = (list(dict.fromkeys(clean(of(pair[side])) for pair in pairs)) for side in (0, 1))
        if before == after:
            told = f"the same ({listed(before, MOST)})"
        elif name == "versions" and len(before) == len(after) == 1:
            told = _moved(pairs[0])
        else:
            told = f"{listed(before, MOST)} → {listed(after, MOST)}"
        yield f"{name + ':':9} {told}"


def _code(pairs: Sequence[Pair]) -> str:
    """Records have one hash of the code of all components of a trial, so it is told variant by variant."""
    moved: dict[str, None] = {}
    hashes = [[str(entry.trial.get("code") or "unknown")[:SHORT] for entry in pair] for pair in pairs]
    for (_, after), (old, new) in zip(pairs, hashes, strict=True):
        if old != new:
            moved[f"{clean(after.variant)} {old} → {new}"] = None
    if not moved:
        return f"the same ({listed(dict.fromkeys(old for old, _ in hashes), MOST)})"
    variants = {entry.variant for _, entry in pairs}
    some = f"; the same for {len(variants) - len(moved)} more" if len(variants) > len(moved) else ""
    return f"{listed(moved, MOST)}{some}"


def _data(entry: Entry) -> str:
    data = entry.result["data"]
    return f"corpus {str(data['corpus'])[:SHORT]}, tokenizer {str(data['tokenizer'])[:SHORT]}"


def _versions(entry: Entry) -> str:
    return ", ".join(f"{name} {version}" for name, version in (entry.provenance.get("versions") or {}).items())


def _moved(pair: Pair) -> str:
    """Of two sets of versions those that differ."""
    before, after = (entry.provenance.get("versions") or {} for entry in pair)
    moved = [
        f"{clean(name)} {clean(str(before.get(name, 'none')))} → {clean(str(after.get(name, 'none')))}"
        for name in dict.fromkeys([*before, *after])
        if before.get(name) != after.get(name)
    ]
    return listed(moved, MOST)


def refuse_unlike(pairs: Sequence[Pair], *, across: bool) -> list[str]:
    """A `NotComparableError` with each reason why pairs are not of one kind; a banner instead, if `across`."""
    problems = [
        Problem(code=code, what=f"before and after do not share {what}: {listed(found, MOST)}", valid=_VALID)
        for code, what, of in _CONDITIONS
        if (found := list(_unlike(pairs, of)))
    ]
    if problems and not across:
        raise NotComparableError(*problems)
    said = "; ".join(problem.what for problem in problems)
    return [f"ACROSS MACHINES: {said}: no difference below is known to be the code's"] if problems else []


def _unlike(pairs: Sequence[Pair], of: Callable[[Entry], Any]) -> Iterator[str]:
    seen = set()
    for before, after in pairs:
        values = clean(str(of(before))), clean(str(of(after)))
        if values[0] != values[1] and values not in seen:
            seen.add(values)
            yield f"{values[0]} against {values[1]}"


def _runtime(entry: Entry) -> str:
    versions: Mapping[str, Any] = entry.provenance.get("versions") or {}
    return ", ".join(f"{name} {str(versions.get(name)).partition('+')[0]}" for name in RUNTIME)


_CONDITIONS: Final[tuple[tuple[str, str, Callable[[Entry], Any]], ...]] = (
    ("other-corpus", "the corpus", lambda entry: str(entry.result["data"]["corpus"])[:SHORT]),
    ("other-tokenizer", "the tokenizer", lambda entry: str(entry.result["data"]["tokenizer"])[:SHORT]),
    ("other-validation", "the validation examples", lambda entry: str(entry.certificate.get("validation"))[:SHORT]),
    ("other-steps", "the number of steps", lambda entry: entry.result["steps"] if entry.done else "diverged"),
    ("other-versions", "their versions", _runtime),
    ("other-machine", "the kind of device", lambda entry: (entry.provenance.get("machine") or {}).get("device")),
)
