"""What a spec says of itself, and what it hands on: its schema, the plugins it needs, Lightning's own arguments."""

from __future__ import annotations

import ast
import importlib.util
import math
import re
from collections.abc import Mapping
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

from paribus.errors import listed, nearest
from paribus.specs.fields import SCHEMA, STEPS
from paribus.specs.lasting import lasts
from paribus.specs.spread import counted, sharded, uncut
from paribus.specs.tree import UNREAD, Keys, shown
from paribus.specs.values import MISSING, Checking

_IDENTIFIER: Final = re.compile(r"[a-z][a-z0-9_]*")


def about(checking: Checking, given: Mapping[str, Any]) -> None:
    """What a spec says of itself: how it is written, and which plugins it needs."""
    schema = given.get("paribus", SCHEMA)
    if schema != SCHEMA or isinstance(schema, bool):
        advice = "upgrade paribus" if isinstance(schema, int) and schema > SCHEMA else "write it anew"
        what = f"this spec is written in schema {shown(schema)}, and this paribus reads schema {SCHEMA}: {advice}"
        checking.wrong("schema", ("paribus",), what, str(SCHEMA))
    if "preset" in given:
        what = "a preset is what a spec begins from, so an override comes too late for it"
        checking.wrong("preset", ("preset",), what, "the preset's name in place of the spec's")
    needed = given.get("plugins") or []
    if not isinstance(needed, list) or not all(isinstance(name, str) for name in needed):
        checking.wrong("wrong-type", ("plugins",), f"expected a list of names, but this is {shown(needed)}")
        return
    doors = [piece.door for piece in checking.index.pieces]
    for place, name in enumerate(needed):
        keys = ("plugins", place)
        for broken in checking.index.broken:
            if name in (broken.door.name, broken.door.distribution):
                checking.wrong("plugin-failed", keys, f"this spec needs it, and {broken}")
        if not any(name in (door.name, door.distribution) for door in doors):
            what = f"this spec needs the plugin `{name}`, which is not installed; a spec never loads one itself"
            known = sorted({door.name for door in doors} | {door.distribution for door in doors if door.distribution})
            checking.wrong("plugin-missing", keys, what, listed(known), nearest(name, known))


def trainer(checking: Checking, given: Mapping[str, Any]) -> Any:
    """Lightning's own arguments, of which it says what they mean; here, whether there are such, and plain values."""
    valid = "arguments of lightning.Trainer"
    found = checking.mapping(given.get("trainer") or {}, ("trainer",), valid)
    if found is None:
        return UNREAD
    known = trainer_arguments() if set(found) - {STEPS.name} else frozenset({STEPS.name})
    for key, value in found.items():
        if not _IDENTIFIER.fullmatch(key):
            checking.wrong("unknown-key", ("trainer", key), f"`{key}` is no argument's name", valid)
        elif known and key not in known:
            what = f"lightning.Trainer has no argument `{key}`"
            checking.wrong("unknown-key", ("trainer", key), what, listed(sorted(known), 40), nearest(key, known))
        _finite(checking, value, ("trainer", key))
    steps = found.get("max_steps")
    if steps is not None:
        checking.option(STEPS, steps, ("trainer", "max_steps"), {})
    lasts(checking, found)
    if sharded(found) or (counted(found) or 1) > 1 or found.get("num_nodes", 1) != 1:
        for key, what, valid in uncut(found):
            checking.wrong("trainer-refused", ("trainer", key), what, valid)
    return dict(found)


@lru_cache(maxsize=1)
def trainer_arguments() -> frozenset[str]:
    """What lightning.Trainer takes, read from its source: importing it takes seconds, and `check` is quick.

    Empty where the source cannot be read, and then Lightning itself is the first to say.
    """
    found = importlib.util.find_spec("lightning")
    if found is None or not found.submodule_search_locations:
        return frozenset()
    source = Path(found.submodule_search_locations[0], "pytorch", "trainer", "trainer.py")
    with suppress(OSError, SyntaxError):
        for node in ast.walk(ast.parse(source.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef) and node.name == "__init__":
                return frozenset(argument.arg for argument in node.args.kwonlyargs)
    return frozenset()


def _finite(checking: Checking, value: Any, keys: Keys) -> None:
    if isinstance(value, dict):
        for key, item in value.items():
            _finite(checking, item, (*keys, key))
    elif isinstance(value, list):
        for place, item in enumerate(value):
            _finite(checking, item, (*keys, place))
    elif isinstance(value, float) and not math.isfinite(value):
        checking.wrong("not-finite", keys, f"this must be finite, but is {value}")
    elif value == MISSING:
        checking.wrong("missing", keys, "this is still to be filled in")
