"""References such as `${dims.width}` to other values of the same spec. No resolvers, environment or cycles."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any, Final, final

from paribus.errors import Problem, SpecError
from paribus.specs.tree import NODES, UNREAD, Keys, Tree, copy_values, join_keys

_REFERENCE: Final = re.compile(r"\$\{([A-Za-z_][\w-]*(?:\.[\w-]+)*)\}")
MAX_REFERENCES: Final = 1000


def resolve_references(tree: Tree) -> None:
    """Replace references by their values, or report each invalid one without repeating any value."""
    references = {keys: text for keys, text in _texts(tree.data, ()) if "${" in text}
    valid = "${dims.width}, with the path of another value of this spec"
    messages = {
        keys: message
        for keys, text in list(references.items())[:MAX_REFERENCES]
        if (message := _wrong(tree, keys, text, references))
    }
    if len(references) > MAX_REFERENCES:
        messages[next(iter(references))] = f"expected at most {MAX_REFERENCES} references, got {len(references)}"
    for keys, message in messages.items():
        problem = Problem(
            code="invalid-reference", path=join_keys(keys), location=tree.location(keys), message=message, valid=valid
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
        self.references = references
        self.remaining = NODES

    def values(self) -> dict[Keys, Any]:
        return {keys: self.expanded(text) for keys, text in self.references.items()}

    def expanded(self, value: Any) -> Any:
        self.remaining -= 1 + (len(value) if isinstance(value, str) else 0)
        if self.remaining < 0:
            message = "the values of the references in this spec are too large"
            raise SpecError(Problem(code="too-large", location=self.tree.location(()), message=message))
        if isinstance(value, Mapping):
            return {key: self.expanded(item) for key, item in value.items()}
        if isinstance(value, list):
            return [self.expanded(item) for item in value]
        if not isinstance(value, str) or "${" not in value:
            return value
        whole = _REFERENCE.fullmatch(value)
        return self.value_of(whole) if whole else _REFERENCE.sub(lambda match: _text(self.value_of(match)), value)

    def value_of(self, match: re.Match[str]) -> Any:
        return self.expanded(self.tree.get(_keys(self.tree.data, match[1])))


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, default=str)


def _wrong(tree: Tree, keys: Keys, text: str, references: Mapping[Keys, str]) -> str:
    """Return the mistake in the references of one text, or an empty string."""
    if "${" in _REFERENCE.sub("", text) or "\\${" in text:
        if re.search(r"\$\{[^}]*:", text):
            return (
                "a reference is the path of a value of this spec; environment variables and resolvers are not supported"
            )
        return "invalid reference `${`"
    for target in _targets(text):
        try:
            tree.get(_keys(tree.data, target))
        except KeyError:
            return f'unknown reference "{target}"'
    return "circular reference" if _circular(tree, keys, text, references) else ""


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


def _keys(data: Any, path: str) -> Keys:
    keys: Keys = ()
    for word in path.split("."):
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
