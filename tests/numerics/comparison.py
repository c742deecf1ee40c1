"""Comparison of golden trials: the first difference of each."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, NamedTuple

SHOWN: Final = 60  # letters of a value
IDENTITIES: Final = ("result data corpus",)  # with the code of a component; other documents give other losses
CERTIFICATE: Final = re.compile(r"(?:.*: )?result certificate (\S+)")  # a place in it, and its key


class GoldenResults(NamedTuple):
    """What `golden.py` wrote."""

    paribus: str  # folder of the package that ran
    trials: Mapping[str, Mapping[str, Any]]  # values by their places, in their order
    failures: Mapping[str, str]
    new: Sequence[str]  # trials that the tree with which the epoch began may be unable to run
    lines: dict[str, list[int]]
    seconds: Mapping[str, float]  # of the processor

    @classmethod
    def read(cls, path: Path) -> GoldenResults:
        return cls(**json.loads(path.read_bytes()))


class Difference(NamedTuple):
    """First place at which a golden trial differs, and the values there."""

    trial: str
    place: str
    old: str
    new: str
    places: int  # number that differ


def compare(
    old: GoldenResults, new: GoldenResults, names: Sequence[str] | None = None
) -> tuple[list[Difference], list[str]]:
    """Return the differences of the named golden trials, or of all, and notes on trials that were not compared."""
    differences: list[Difference] = []
    notes: list[str] = []
    for name in {**new.trials, **new.failures} if names is None else names:
        if name in old.failures and name in new.new and name in new.trials:
            notes.append(f"{name} is new, and not compared: {old.failures[name]}")
        elif name in old.failures or name in new.failures:
            before, now = (results.failures.get(name, "no error") for results in (old, new))
            differences.append(Difference(name, "error", before, now, 1))
        else:
            added = added_evidence(old.trials[name], new.trials[name])
            notes += [f"{name}: the certificate has `{key}` since, which is not compared" for key in added]
            kept = {place: value for place, value in new.trials[name].items() if _evidence(place) not in added}
            difference = first_difference(name, old.trials[name], kept)
            differences += [] if difference is None else [difference]
    return differences, notes


def added_evidence(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """Return the keys of a certificate that the engine did not write when the epoch began: evidence, and no numbers."""
    before, now = (dict.fromkeys(filter(None, map(_evidence, values))) for values in (old, new))
    return [key for key in now if key not in before] if before else []


def _evidence(place: str) -> str:
    """Return the key of a certificate that a place belongs to, or an empty string."""
    match = CERTIFICATE.match(place)
    return match[1] if match else ""


def first_difference(name: str, old: Mapping[str, Any], new: Mapping[str, Any]) -> Difference | None:
    """Return the first place at which the values of a trial differ."""
    missing = object()
    places = [place for place in {**old, **new} if old.get(place, missing) != new.get(place, missing)]
    places = [place for place in places if place not in IDENTITIES]
    if not places:
        return None
    before, now = (_shown(values[places[0]]) if places[0] in values else "none" for values in (old, new))
    return Difference(name, places[0], before, now, len(places))


def difference_table(differences: Sequence[Difference]) -> str:
    """Return a table with a line for each golden trial that differs."""
    rows = [("golden trial", "differs first in", "before", "now", "places")]
    rows += [(item.trial, item.place, item.old, item.new, str(item.places)) for item in differences]
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return "\n".join(
        "  ".join(word.ljust(width) for word, width in zip(row, widths, strict=True)).rstrip() for row in rows
    )


def _shown(value: Any) -> str:
    """Return a value as text; floats are stored in hexadecimal, so that they keep all digits."""
    if isinstance(value, str) and "0x" in value:
        with suppress(ValueError):
            return repr(float.fromhex(value))
    text = json.dumps(value) if not isinstance(value, str) else value
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}…"
