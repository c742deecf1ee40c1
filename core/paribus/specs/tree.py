"""A spec before validation: plain values and their locations."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias, final

from paribus.errors import Problem

Keys: TypeAlias = "tuple[str | int, ...]"


@final
class Unread:
    """Placeholder for a value with a reported problem, so that later checks ignore it."""

    def __repr__(self) -> str:
        return "(not read)"


UNREAD: Final = Unread()


def contains_unread(value: object) -> bool:
    """Return whether a value contains an unread one."""
    if isinstance(value, Mapping):
        return any(map(contains_unread, value.values()))
    return any(map(contains_unread, value)) if isinstance(value, (list, tuple)) else value is UNREAD


def join_keys(keys: Keys) -> str:
    """Join keys as overrides and errors write them: `attention.0.kv_heads`."""
    return ".".join(map(str, keys))


def value_text(value: object) -> str:
    """Format a value for an error message, in YAML's words."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return f'the text "{_cut(value)}"'
    if isinstance(value, Mapping):
        return "a mapping" if value else "an empty mapping"
    if isinstance(value, (list, tuple)):
        return "a list" if value else "an empty list"
    return f"the number {_cut(str(value))}" if isinstance(value, (int, float)) else _cut(str(value))


def _cut(text: str, limit: int = 60) -> str:
    return text if len(text) <= limit else text[: limit - 1] + "…"


@final
@dataclass
class Tree:
    """Plain values, their locations, and the problems found so far."""

    data: Any = field(default_factory=dict)
    locations: dict[Keys, str] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)

    def location(self, keys: Keys) -> str:
        """Return the location of the value at `keys`, of a value in it, or of the closest value around it."""
        if keys not in self.locations:
            inside = next((mark for place, mark in self.locations.items() if place[: len(keys)] == keys), "")
            if inside and keys:
                return inside
        for end in range(len(keys), -1, -1):
            if keys[:end] in self.locations:
                return self.locations[keys[:end]]
        return ""

    def merge(self, tree: Tree, prefix: Keys = ()) -> None:
        """Merges `other` in at `at`: mappings into mappings; a changed name replaces its node, as all else does."""
        value = tree.data
        for key in reversed(prefix):
            value = _At(key, value) if isinstance(key, int) else {key: value}
        self.problems += tree.problems
        self.data = self._merged(self.data, value, ())
        self.locations.update({(*prefix, *keys): mark for keys, mark in tree.locations.items()})

    def _merged(self, base: Any, over: Any, keys: Keys) -> Any:
        if isinstance(over, _At):
            items = list(base)
            items[over.index] = self._merged(items[over.index], over.value, (*keys, over.index))
            return items
        if isinstance(over, Mapping) and isinstance(base, str) and over.get("name", base) == base:
            base = {"name": base}  # `attention: gqa` is short for `attention: {name: gqa}`
        if isinstance(over, str) and isinstance(base, Mapping) and base.get("name") == over:
            return base
        if isinstance(over, Mapping) and isinstance(base, Mapping) and _same(base, over):
            merge_values = dict(base)
            for key, value in over.items():
                merge_values[key] = self._merged(base.get(key), value, (*keys, key))
            return merge_values
        self._forget(keys)
        return copy_values(over)

    def _forget(self, keys: Keys) -> None:
        size = len(keys)
        for mark in [mark for mark in self.locations if mark[:size] == keys and mark]:
            del self.locations[mark]

    def get(self, keys: Keys) -> Any:
        """Return the value at `keys`, or raise a KeyError."""
        value = self.data
        for key in keys:
            try:
                value = value[key]
            except (KeyError, IndexError, TypeError):
                raise KeyError(join_keys(keys)) from None
        return value


@final
@dataclass(frozen=True)
class _At:
    """Value for one index of an existing list."""

    index: int
    value: Any


def copy_values(value: Any) -> Any:
    """Copy plain values, so that two trees share no mapping or list."""
    if isinstance(value, Mapping):
        return {key: copy_values(item) for key, item in value.items()}
    return [copy_values(item) for item in value] if isinstance(value, list) else value


def merge_values(base: Any, over: Any) -> Any:
    """Merge `over` into `base`, as an override."""
    tree = Tree(base)
    tree.merge(Tree(over))
    return tree.data


def _same(base: Mapping[str, Any], over: Mapping[str, Any]) -> bool:
    return "name" not in over or "name" not in base or base["name"] == over["name"]
