"""Scales: the same study at several sizes. Each is the base with some sizes changed, or on another preset."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from paribus.specs.override import put
from paribus.specs.tree import Keys, Tree, copied, shown
from paribus.specs.values import Checking
from paribus.studies.stages import Stage

_NAME: Final = re.compile(r"[a-z0-9][a-z0-9._-]{0,31}")
_VALID: Final = "scales: {s: {dims.width: 32}, m: {dims.width: 64}}, or presets: [gpt-tiny, gpt2]"
PRESET: Final = "preset"
FEWEST: Final = 2

Begin = Callable[[Mapping[str, Any]], Tree]  # a study's base, from what it says of it


def scales_of(checking: Checking, given: Any, base: Any, begin: Begin) -> dict[str, Tree]:
    """The base at each scale, by the scale's name; the study's own where it has no scales."""
    if given is None:
        return {}
    if isinstance(given, list) and all(isinstance(each, str) for each in given):
        given = {name: {PRESET: name} for name in given}
    found = checking.mapping(given, ("scales",), _VALID) or {}
    if len(found) < FEWEST:
        checking.wrong("too-few", ("scales",), f"this is {len(found)} of the two or more sizes to compare at", _VALID)
    trees: dict[str, Tree] = {}
    for name, says in found.items():
        at: Keys = ("scales", name)
        if not _NAME.fullmatch(str(name)):
            checking.wrong("bad-name", at, f"a scale cannot be called {shown(name)}", "a word: s, m, l")
        elif (own := checking.mapping(says, at, "{dims.width: 64}, or {preset: NAME}")) is not None:
            if not own:
                checking.wrong("empty", at, f"the scale `{name}` changes nothing", "{dims.width: 64}")
            trees[str(name)] = _at_scale(checking, own, at, base, begin)
    return trees


def _at_scale(checking: Checking, own: Mapping[str, Any], at: Keys, base: Any, begin: Begin) -> Tree:
    """What the scale says, over the base: on another preset, where it names one."""
    below = base if isinstance(base, Mapping) else {PRESET: base}
    tree = begin({**copied(below), PRESET: own[PRESET]} if PRESET in own else copied(below))
    for key, value in own.items():
        if key != PRESET:
            where = checking.tree.where((*at, key))
            put(tree, str(key), Tree(copied(value), {(): where}), where)
    return tree


def overlapping(
    checking: Checking, scales: Mapping[str, Any] | Any, varied: Sequence[tuple[Keys, str]], stages: Sequence[Stage]
) -> None:
    """A key that a scale says, and that is varied as well or said by a stage, would be ignored at that scale."""
    for name, says in scales.items() if isinstance(scales, Mapping) else ():
        for key in says if isinstance(says, Mapping) else ():
            at: Keys = ("scales", name, key)
            other = next((each for _, each in varied if _overlap(str(key), each)), None)
            stage = next((each for each in stages if any(_overlap(str(key), word) for word in each.says.data)), None)
            if other is not None:
                what = f"`{other}` is varied, so that the scale's own `{key}` would be ignored"
                checking.wrong("varied-twice", at, what, "a scale changes what no variant does")
            elif stage is not None:
                what = f"the stage `{stage.name}` says this itself, so that the scale's own would be ignored"
                checking.wrong("not-read", at, what, "a scale changes what no stage does")


def _overlap(key: str, other: str) -> bool:
    return key == other or key.startswith(f"{other}.") or other.startswith(f"{key}.")
