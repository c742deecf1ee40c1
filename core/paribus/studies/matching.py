"""What a study matches its variants on, and the option that is turned for it: in one way, or in several."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, final

from paribus.errors import listed
from paribus.specs.tree import Keys, shown
from paribus.specs.values import Checking

TIME: Final = "time"  # of a training step, which is measured and not counted
MATCHES: Final = ("params", "flops", "kv", "state", TIME)


@final
@dataclass(frozen=True)
class Match:
    """What every variant is made to have as much of as the baseline, and the option that is turned for it."""

    on: str
    by: str


def matches_of(checking: Checking, given: Any) -> tuple[Match | None, ...]:
    """One way to match, or none, or a list of them that are shown side by side."""
    if not isinstance(given, list):
        return (_match(checking, given, ("match",)),)
    found = tuple(_match(checking, None if each == "none" else each, ("match", at)) for at, each in enumerate(given))
    if not found or len(set(found)) < len(found):
        valid = "[{on: params, by: …}, {on: flops, by: …}], or none among them"
        checking.wrong("wrong-type", ("match",), "this list is empty, or has the same twice", valid)
    return found or (None,)


def _match(checking: Checking, given: Any, at: Keys) -> Match | None:
    if given is None:
        return None
    found = checking.mapping(given, at, "on, by") or {}
    for key in found:
        if key not in ("on", "by"):
            checking.unknown(key, (*at, key), ("on", "by"))
    if found.get("on") not in MATCHES:
        checking.wrong("wrong-type", (*at, "on"), _is(found, "on"), listed(MATCHES))
    if not isinstance(found.get("by"), str):
        checking.wrong("wrong-type", (*at, "by"), _is(found, "by"), "an option: feedforward.expand")
    return Match(str(found.get("on")), str(found.get("by")))


def _is(found: Mapping[str, Any], key: str) -> str:
    """What stands at a key that is needed: what is not there is no null."""
    return f"this is {shown(found[key])}" if key in found else f"`{key}` is missing"
