"""Overrides in Hydra's syntax: `attention=gqa attention.kv_heads=2`."""

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
    """Apply each override in order; an invalid one is added to the tree's problems."""
    for number, override in enumerate(overrides, start=1):
        location = f"override {number}"
        path, equals, text = str(override).partition("=")
        if not equals or not _WAY.fullmatch(path) or path.count(".") >= DEPTH:
            message = f'expected key=value, got "{str(override)[:200]}"'
            valid = "key=value with dots between keys: attention=gqa attention.kv_heads=2 attention.0=mqa"
            tree.problems.append(Problem(code="no-override", location=location, message=message, valid=valid))
        elif not text:
            message, valid = "expected a value after `=`", f"{path}=null for none, {path}='\"\"' for empty text"
            tree.problems.append(
                Problem(code="no-override", path=path, location=location, message=message, valid=valid)
            )
        else:
            set_path(tree, path, _value(text, location), location)


def set_path(tree: Tree, path: str, value: Tree, location: str) -> None:
    """Merge one value into a tree at a dotted path; numbers are indices of lists."""
    keys: Keys = ()
    node: Any = tree.data
    for word in path.split("."):
        key: str | int = word
        if isinstance(node, list):
            if not word.isdecimal() or int(word) >= len(node):
                message = f"`{join_keys(keys)}` is a list of {len(node)} items; unknown index `{word}`"
                valid = f"0 to {len(node) - 1}" if node else f"{join_keys(keys)}=[…], as it is empty"
                tree.problems.append(
                    Problem(code="no-place", path=path, location=location, message=message, valid=valid)
                )
                return
            key = int(word)
        keys = (*keys, key)
        try:
            node = node[key]
        except (KeyError, TypeError):
            node = None
    problems = [Problem(**{**vars(problem), "path": _joined(keys, problem.path)}) for problem in value.problems]
    tree.merge(Tree(value.data, value.locations, problems), keys)


def _value(text: str, location: str) -> Tree:
    try:
        value = read_yaml(text, location, lines=False)
    except SpecError as error:
        value = Tree(None, {}, list(error.problems))
    value.locations.setdefault((), location)
    return value


def _joined(keys: Keys, path: str) -> str:
    return join_keys((*keys, path)) if path else join_keys(keys)
