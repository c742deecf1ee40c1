"""What was found by measuring, kept in the store: to which value the knob of a variant was turned, and what it came to.

A solution is measured once and then stays, as the trials that were trained with it do. What is not now as it was then
(the machine, the code) is said; whoever wants it measured anew removes its document.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from paribus.planning.match_search import BudgetMatch, TimeMeasurement
from paribus.storage.atomic import digest_json
from paribus.storage.store import Store
from paribus.train.cpu_model import processor_name

FOLDER: Final = "matching"
_FREE: Final = {"data": ("validation", "evaluations"), "trainer": ("max_steps", "max_time")}
"""What no step of a training depends on."""


def match_key(baseline: Mapping[str, Any], spec: Mapping[str, Any], by: str) -> str:
    """What a solution is kept under: both as they step, with the knob as it is written."""
    return digest_json([_stepping(baseline), _stepping(spec), by])


def _stepping(spec: Mapping[str, Any]) -> dict[str, Any]:
    """Without what a longer study, or one of more seeds, would have otherwise."""
    kept = {key: value for key, value in spec.items() if key not in ("seed", "evaluate", "measure")}
    for key, names in _FREE.items():
        kept[key] = {name: value for name, value in (spec.get(key) or {}).items() if name not in names}
    if isinstance(spec.get("from"), Mapping):
        kept["from"] = {key: value for key, value in spec["from"].items() if key != "trial"}
    return kept


def match_path(store: Store, key: str) -> Path:
    return store.root / FOLDER / f"{key}.json"


def read_time_match(store: Store, key: str, code: str) -> BudgetMatch | None:
    """What stands in the store, with what has changed since; `code` is that behind both specs now."""
    found = store.document(FOLDER, f"{key}.json")
    if found is None:
        return None
    with suppress(KeyError, TypeError, ValueError, AttributeError):
        return _matched(found, code)
    return None


def _matched(found: Mapping[str, Any], code: str) -> BudgetMatch | None:
    low, high = found["interval"]
    machine = found["machine"]
    since = []
    if machine["device"] == "cpu" and machine["name"] != processor_name():
        since.append(f"this machine is another: {processor_name()}")
    if found["code"] != code:
        since.append("the code has changed")
    measured = TimeMeasurement(
        float(found["ratio"]),
        -math.inf if low is None else float(low),
        math.inf if high is None else float(high),
        float(found["twin"]),
        int(found["rounds"]),
        str(machine["name"]),
        datetime.fromtimestamp(found["ended"], UTC).date().isoformat(),
        tuple(since),
    )
    value = found["value"]
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(measured.ratio):
        return None
    before, after = found["nanoseconds"]
    return BudgetMatch(value, int(after), int(before), measured)
