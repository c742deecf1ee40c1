"""What fills a slot of a spec: one component, or a list of them where the slot takes one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from paribus.errors import listed
from paribus.specs.fields import ASKED, CYCLED, SUMMED
from paribus.specs.tree import UNREAD, Keys, dotted
from paribus.specs.values import Checking, divisors


def nodes(checking: Checking, slot: str, given: Any, keys: Keys, dims: Mapping[str, Any]) -> Any:
    """One component, or a list of them where the slot takes one."""
    if not isinstance(given, list) or slot not in (*CYCLED, *SUMMED, *ASKED):
        return checking.component(slot, given, keys, dims)
    if not given:
        return checking.wrong("empty", keys, f"this list names no {slot}", "at least one")
    found = [checking.component(slot, item, (*keys, place), dims) for place, item in enumerate(given)]
    layers = dims["layers"]
    if slot in CYCLED and isinstance(layers, int) and len(found) > layers:
        what = f"a list of {len(found)} is cycled over {layers} layers, so its end would be ignored"
        checking.wrong("not-read", keys, what, f"a list of at most {layers}")
    if slot in (*SUMMED, *ASKED):
        _once(checking, slot, found, keys)
    return found


def _once(checking: Checking, slot: str, found: list[Any], keys: Keys) -> None:
    names = [node["name"] for node in found if node is not UNREAD]
    for name in sorted({name for name in names if names.count(name) > 1}):
        checking.wrong("twice", keys, f"`{name}` is in this list more than once", f"each {slot} once")


def sizes_agree(checking: Checking, dims: Mapping[str, Any], keys: Keys) -> None:
    """Heads share the width evenly, and groups the layers."""
    shares(checking, dims, keys)
    layers, groups = dims["layers"], dims["groups"]
    if isinstance(groups, int) and isinstance(layers, int) and layers % groups:
        what = f"`dims.groups` ({groups}) does not divide `dims.layers` ({layers}), so that runs would not be equal"
        checking.wrong("not-divisible", (*keys, "groups"), what, listed(divisors(layers)))


def shares(checking: Checking, dims: Mapping[str, Any], keys: Keys) -> None:
    """Without a head width, the heads share the width evenly."""
    width, heads = dims["width"], dims["heads"]
    if dims["head_width"] is not None or not isinstance(width, int) or not isinstance(heads, int) or width % heads == 0:
        return
    near = " or ".join(str(size) for size in (width // heads * heads, (width // heads + 1) * heads) if size)
    few = [number for number in divisors(width) if number <= 2 * heads]
    what = f"`dims.width` ({width}) is no multiple of `{dotted(keys)}.heads` ({heads})"
    valid = f"dims.width {near}, heads {listed(few[-6:])}, or a head_width of its own"
    checking.wrong("not-divisible", (*keys, "heads"), what, valid)
