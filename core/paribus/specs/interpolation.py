"""`${dims.width}`: a value that is another value of the same spec. No resolver, no environment, no cycle."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any, Final, final

from paribus.errors import Problem, SpecError
from paribus.specs import input_limits
from paribus.specs.tree import UNREAD, Keys, Tree, copy_values, join_keys

_REFERENCE: Final = re.compile(r"\$\{([A-Za-z_][\w-]*(?:\.[\w-]+)*)\}")
MOST: Final = 1000


def resolve_references(tree: Tree) -> None:
    """Puts the values in place of references, or says of each what is wrong with it, without echoing any value."""
    found = {keys: text for keys, text in _texts(tree.data, ()) if "${" in text}
    valid = "${dims.width}, with the path of another value of this spec"
    bad = {keys: what for keys, text in list(found.items())[:MOST] if (what := _wrong(tree, keys, text, found))}
    if len(found) > MOST:
        bad[next(iter(found))] = f"there are {len(found)} references, and {MOST} are as many as there may be"
    for keys, what in bad.items():
        problem = Problem(
            code="reference", path=join_keys(keys), location=tree.location(keys), message=what, valid=valid
        )
        tree.problems.append(problem)
    values = dict.fromkeys(found, UNREAD) if bad else _Expansion(tree, found).values()
    tree.data = copy_values(tree.data)  # what other trees share stays as it is
    for keys, value in values.items():
        _set(tree.data, keys, value)


@final
class _Expansion:
    """The values of references that are known to lead somewhere; a few that double each time are soon too many."""

    def __init__(self, tree: Tree, found: Mapping[Keys, str]) -> None:
        self.tree = tree
        self.found = found
        self.left = input_limits.NODES

    def values(self) -> dict[Keys, Any]:
        return {keys: self.expanded(text) for keys, text in self.found.items()}

    def expanded(self, value: Any) -> Any:
        self.left -= 1 + (len(value) if isinstance(value, str) else 0)
        if self.left < 0:
            what = "the references of this spec grow too large"
            raise SpecError(Problem(code="too-large", location=self.tree.location(()), message=what))
        if isinstance(value, Mapping):
            return {key: self.expanded(item) for key, item in value.items()}
        if isinstance(value, list):
            return [self.expanded(item) for item in value]
        if not isinstance(value, str) or "${" not in value:
            return value
        whole = _REFERENCE.fullmatch(value)
        return self.of(whole) if whole else _REFERENCE.sub(lambda match: _text(self.of(match)), value)

    def of(self, match: re.Match[str]) -> Any:
        return self.expanded(self.tree.get(_keys(self.tree.data, match[1])))


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, default=str)


def _wrong(tree: Tree, keys: Keys, text: str, found: Mapping[Keys, str]) -> str:
    """What is wrong with the references in one text, or nothing."""
    if "${" in _REFERENCE.sub("", text) or "\\${" in text:
        if re.search(r"\$\{[^}]*:", text):
            return "only values of the spec itself can be referred to: no environment, no resolver"
        return "this `${` is no reference"
    for target in _targets(text):
        try:
            tree.get(_keys(tree.data, target))
        except KeyError:
            return f"there is no `{target}` in this spec to refer to"
    return "this reference leads back to itself" if _circular(tree, keys, text, found) else ""


def _targets(text: str) -> list[str]:
    return [match[1] for match in _REFERENCE.finditer(text)]


def _circular(tree: Tree, start: Keys, text: str, found: Mapping[Keys, str]) -> bool:
    """Whether following the references in `text` comes back to where it stands, or to something around it."""
    seen: set[Keys] = set()
    left = [_keys(tree.data, target) for target in _targets(text)]
    while left:
        keys = left.pop()
        if start[: len(keys)] == keys:
            return True
        if keys in seen:
            continue
        seen.add(keys)
        inside = [text for place, text in found.items() if place[: len(keys)] == keys]
        left += [_keys(tree.data, target) for text in inside for target in _targets(text)]
    return False


def _keys(data: Any, way: str) -> Keys:
    keys: Keys = ()
    for word in way.split("."):
        key: str | int = int(word) if isinstance(data, list) and word.isdecimal() else word
        keys = (*keys, key)
        try:
            data = data[key]
        except (KeyError, IndexError, TypeError):
            data = None
    return keys


def _texts(value: Any, keys: Keys) -> Iterator[tuple[Keys, str]]:
    if isinstance(value, str):
        yield keys, value
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from _texts(item, (*keys, key))
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from _texts(item, (*keys, index))


def _set(data: Any, keys: Keys, value: Any) -> None:
    for key in keys[:-1]:
        data = data[key]
    data[keys[-1]] = value
