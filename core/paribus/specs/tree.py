"""Plain values of a spec with their locations, before validation; dotted paths into them; limits of size and depth."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias, final

from paribus.errors import Problem, SpecError

Keys: TypeAlias = "tuple[str | int, ...]"
DEPTH: Final = 64  # maximum nesting of a spec
NODES: Final = 100_000  # maximum number of values of a spec


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
    """Format a value for an error message, with the names of YAML."""
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
    """Plain values, their locations, and the problems so far."""

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

    def subtree(self, keys: Keys) -> Tree:
        """Return a copy of the value at `keys` with the locations in it."""
        marks = {place[len(keys) :]: mark for place, mark in self.locations.items() if place[: len(keys)] == keys}
        return Tree(copy_values(self.get(keys)), marks or {(): self.location(keys)})

    def merge(self, tree: Tree, prefix: Keys = ()) -> None:
        """Merge a tree at `prefix`: mappings key by key; other values and components of other names are replaced."""
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


def plain_tree(value: Any, name: str = "spec") -> Tree:
    """Return a copy of a Python value as plain values: dicts, lists, text, numbers, true, false and null."""
    tree = Tree()
    remaining = [NODES]

    def copied(value: Any, keys: Keys) -> Any:
        remaining[0] -= 1
        if remaining[0] < 0:
            raise input_error("too-large", name, "too many values", f"at most {NODES:,}")
        if len(keys) > DEPTH:
            raise input_error(
                "too-deep", name, "this is nested too deep, or contains itself", f"at most {DEPTH} levels"
            )
        if value is None or isinstance(value, (str, bool, int, float)):
            return value
        if isinstance(value, (list, tuple)):
            return [copied(item, (*keys, index)) for index, item in enumerate(value)]
        if isinstance(value, Mapping):
            return {_key(key, keys): copied(item, (*keys, key)) for key, item in value.items()}
        return _wrong(f"expected a plain value, got a {type(value).__name__}", keys)

    def _key(key: Any, keys: Keys) -> str:
        if not isinstance(key, str):
            _wrong(f"expected text as a key, got the {type(key).__name__} {key!r}", keys)
        return str(key)

    def _wrong(message: str, keys: Keys) -> Any:
        valid = "mappings, lists, text, numbers, true, false, null"
        tree.problems.append(
            Problem(code="unsupported-value", path=join_keys(keys), location=name, message=message, valid=valid)
        )
        return UNREAD

    tree.data = copied(value, ())
    return tree


def input_error(code: str, location: str, message: str, valid: str) -> SpecError:
    """Return the error of an input that cannot be read at all."""
    return SpecError(Problem(code=code, location=location, message=message, valid=valid))


def get_path(value: Any, path: str, default: Any = None) -> Any:
    """Return the value at a dotted path, or `default`; a number in the path is an index of a list."""
    for key in path.split("."):
        if isinstance(value, Mapping) and key in value:
            value = value[key]
        elif isinstance(value, list | tuple) and key.isdecimal() and int(key) < len(value):
            value = value[int(key)]
        else:
            return default
    return value


def is_met(options: Any, condition: str) -> bool:
    """Return whether a condition of the trait `provides_if` holds for some options.

    `option`: it is neither null nor false; `option=a|b`: it has one of these values.
    """
    option, _, values = condition.partition("=")
    value = get_path(options, option)
    return value in values.split("|") if values else value not in (None, False)


def document_fact(options: Any, value: Any) -> Any:
    """Return a value of the trait `document_facts` as a number: itself, or what an option of a corpus has.

    `option`: its number, or the length of its list; `a|b`: that of the first that is neither null nor empty.
    """
    if not isinstance(value, str):
        return value
    values = [get_path(options, option) for option in value.split("|")]
    found = next((it for it in values if it not in (None, [], ())), values[-1])
    return len(found) if isinstance(found, list | tuple) else found


def flatten(value: Any, path: str = "", *, has_lists: bool = True) -> Iterator[tuple[str, Any]]:
    """Yield the dotted path and value of every leaf; with `has_lists` false, a list is a leaf."""
    if isinstance(value, Mapping):
        pairs = list(value.items())
    elif isinstance(value, list | tuple) and has_lists:
        pairs = list(enumerate(value))
    else:
        yield path, value
        return
    for key, item in pairs:
        yield from flatten(item, f"{path}.{key}" if path else str(key), has_lists=has_lists)
