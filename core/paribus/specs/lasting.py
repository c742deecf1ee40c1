"""How long a training may take: `trainer.max_time`, as Lightning spells it, in seconds of training steps."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any, Final

from paribus.specs.tree import shown
from paribus.specs.values import Checking

UNITS: Final = {"days": 86_400.0, "hours": 3_600.0, "minutes": 60.0, "seconds": 1.0}
VALID: Final = "{seconds: 60}, also minutes, hours and days; or DD:HH:MM:SS"
_CLOCK: Final = re.compile(r"(\d+):(\d+):(\d+):(\d+)")


def lasting(trainer: Mapping[str, Any] | None) -> float | None:
    """The seconds after which a training ends, or None where steps alone decide."""
    return _seconds((trainer or {}).get("max_time"))


def lasts(checking: Checking, trainer: Mapping[str, Any]) -> None:
    """Tells of a `max_time` that is no time."""
    given = trainer.get("max_time")
    if given is not None and _seconds(given) is None:
        checking.wrong("wrong-type", ("trainer", "max_time"), f"this is {shown(given)}, and no time > 0", VALID)


def _seconds(given: Any) -> float | None:
    if isinstance(given, str) and (clock := _CLOCK.fullmatch(given)):
        given = dict(zip(UNITS, map(int, clock.groups()), strict=True))
    if not isinstance(given, Mapping) or not all(key in UNITS and _is_number(given[key]) for key in given):
        return None
    found = math.fsum(UNITS[key] * float(value) for key, value in given.items())
    return found if 0 < found < math.inf else None


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)
