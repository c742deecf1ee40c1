"""Overrides in Hydra's spelling, one at a time, on plain values: `attention=gqa attention.kv_heads=2`."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Final

from paribus.errors import Problem, SpecError
from paribus.specs.tree import Keys, Tree, join_keys
from paribus.specs.yaml_reader import read_yaml

_WAY: Final = re.compile(r"[A-Za-z_][\w-]*(\.[\w-]+)*")
DEPTH: Final = 32


def apply_overrides(tree: Tree, overrides: Sequence[str]) -> None:
    """Each override in turn; what is wrong with one is added to the tree's problems, and the others go on."""
    for number, override in enumerate(overrides, start=1):
        where = f"override {number}"
        way, equals, text = str(override).partition("=")
        if not equals or not _WAY.fullmatch(way) or way.count(".") >= DEPTH:
            what = f"`{str(override)[:200]}` is no override"
            valid = "key=value with dots between keys: attention=gqa attention.kv_heads=2 attention.0=mqa"
            tree.problems.append(Problem(code="no-override", location=where, message=what, valid=valid))
        elif not text:
            what, valid = "there is nothing behind the `=`", f"{way}=null for none, {way}='\"\"' for empty text"
            tree.problems.append(Problem(code="no-override", path=way, location=where, message=what, valid=valid))
        else:
            set_path(tree, way, _value(text, where), where)


def set_path(tree: Tree, way: str, value: Tree, where: str) -> None:
    """Merges one value in at a dotted path; numbers are places in lists."""
    keys: Keys = ()
    here: Any = tree.data
    for word in way.split("."):
        key: str | int = word
        if isinstance(here, list):
            if not word.isdecimal() or int(word) >= len(here):
                what = f"`{join_keys(keys)}` is a list of {len(here)}, and `{word}` is no place in it"
                valid = f"0 to {len(here) - 1}" if here else f"{join_keys(keys)}=[…], as it is empty"
                tree.problems.append(Problem(code="no-place", path=way, location=where, message=what, valid=valid))
                return
            key = int(word)
        keys = (*keys, key)
        try:
            here = here[key]
        except (KeyError, TypeError):
            here = None
    problems = [Problem(**{**vars(problem), "path": _joined(keys, problem.path)}) for problem in value.problems]
    tree.merge(Tree(value.data, value.locations, problems), keys)


def _value(text: str, where: str) -> Tree:
    try:
        value = read_yaml(text, where, lines=False)
    except SpecError as error:
        value = Tree(None, {}, list(error.problems))
    value.locations.setdefault((), where)
    return value


def _joined(keys: Keys, path: str) -> str:
    return join_keys((*keys, path)) if path else join_keys(keys)
