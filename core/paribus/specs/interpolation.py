"""References such as `${dims.width}` to other values of the same spec. No resolvers, environment or cycles."""

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
    """Replace references by their values, or report each invalid one without repeating any value."""
    references = {keys: text for keys, text in _texts(tree.data, ()) if "${" in text}
    valid = "${dims.width}, with the path of another value of this spec"
    messages = {
        keys: message
        for keys, text in list(references.items())[:MOST]
        if (message := _wrong(tree, keys, text, references))
    }
    if len(references) > MOST:
        messages[next(iter(references))] = (
            f"there are {len(references)} references, and {MOST} are as many as there may be"
        )
    for keys, message in messages.items():
        problem = Problem(
            code="reference", path=join_keys(keys), location=tree.location(keys), message=message, valid=valid
        )
        tree.problems.append(problem)
    values = dict.fromkeys(references, UNREAD) if messages else _Expansion(tree, references).values()
    tree.data = copy_values(tree.data)  # other trees may share these values
    for keys, value in values.items():
        _set(tree.data, keys, value)


@final
class _Expansion:
    """Values of valid references, with a limit on their total size, which can double with each reference."""

    def __init__(self, tree: Tree, references: Mapping[Keys, str]) -> None:
        self.tree = tree
        self.found = references
        self.left = input_limits.NODES

    def values(self) -> dict[Keys, Any]:
        return {keys: self.expanded(text) for keys, text in self.found.items()}

    def expanded(self, value: Any) -> Any:
        self.left -= 1 + (len(value) if isinstance(value, str) else 0)
        if self.left < 0:
            message = "the references of this spec grow too large"
            raise SpecError(Problem(code="too-large", location=self.tree.location(()), message=message))
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


def _wrong(tree: Tree, keys: Keys, text: str, references: Mapping[Keys, str]) -> str:
    """Return the mistake in the references of one text, or an empty string."""
    if "${" in _REFERENCE.sub("", text) or "\\${" in text:
        if re.search(r"\$\{[^}]*:", text):
            return "a reference names a value of the spec itself: no environment, no resolver"
        return "invalid reference `${`"
    for target in _targets(text):
        try:
            tree.get(_keys(tree.data, target))
        except KeyError:
            return f'unknown reference "{target}"'
    return "this reference leads back to itself" if _circular(tree, keys, text, references) else ""


def _targets(text: str) -> list[str]:
    return [match[1] for match in _REFERENCE.finditer(text)]


def _circular(tree: Tree, start: Keys, text: str, references: Mapping[Keys, str]) -> bool:
    """Return whether the references in `text` lead back to it or to a value that contains it."""
    visited: set[Keys] = set()
    pending = [_keys(tree.data, target) for target in _targets(text)]
    while pending:
        keys = pending.pop()
        if start[: len(keys)] == keys:
            return True
        if keys in visited:
            continue
        visited.add(keys)
        nested = [text for place, text in references.items() if place[: len(keys)] == keys]
        pending += [_keys(tree.data, target) for text in nested for target in _targets(text)]
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
