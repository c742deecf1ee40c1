"""Two resolved specs in few words: slot by slot what differs, and of a component only what it does not do anyway."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from paribus.registry import Index
from paribus.schema import Option
from paribus.specs.fields import SUMMED

Plain = Mapping[str, Any]
Told = tuple[str, str, str]  # a dotted key, and both values


def differing(left: Plain, right: Plain, index: Index) -> Iterator[Told]:
    """What two resolved specs differ in: `attention: mha → gqa(kv_heads=2)`, `objective.mlm.rate: 0.15 → 0.3`."""
    for key in dict.fromkeys([*left, *right]):
        yield from _between(key, left.get(key), right.get(key), key, index)


def _between(path: str, left: Any, right: Any, slot: str, index: Index) -> Iterator[Told]:
    if left == right:
        return
    if isinstance(left, Mapping) and isinstance(right, Mapping) and left.get("name") == right.get("name"):
        for key in dict.fromkeys([*left, *right]):
            inner = key if key in index.entries else slot
            yield from _between(f"{path}.{key}", left.get(key), right.get(key), inner, index)
        return
    one, other = (_by_name(value) if slot in SUMMED else {} for value in (left, right))
    if set(one) & set(other):  # what both sums have is told option by option
        for name in dict.fromkeys([*one, *other]):
            yield from _between(f"{path}.{name}", one.get(name), other.get(name), slot, index)
        return
    yield path, spoken(left, slot, index), spoken(right, slot, index)


def _by_name(value: Any) -> dict[str, Any]:
    """Components by their names: of one, or of a list without doubles."""
    nodes = value if isinstance(value, Sequence) and not isinstance(value, str) else [value]
    found = {node["name"]: node for node in nodes if isinstance(node, Mapping) and "name" in node}
    return found if len(found) == len(nodes) else {}


def spoken(value: Any, slot: str, index: Index) -> str:
    """A value of a spec, without what is so by default; `-` where there is none."""
    if value is None:
        return "-"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, Mapping):
        entry = index.entries.get(slot, {}).get(str(value.get("name", "")))
        options = {option.name: option for option in entry.options} if entry is not None else {}
        return f"{value.get('name', '')}{_options(value, options, index)}"
    if isinstance(value, Sequence) and not isinstance(value, str):
        return "[" + ", ".join(spoken(item, slot, index) for item in value) + "]"
    return str(value)


def _options(node: Plain, known: Mapping[str, Option], index: Index) -> str:
    said = []
    for name, value in node.items():
        option = known.get(name)
        if name == "name" or (option is not None and not option.required and value == option.default):
            continue
        if option is not None and option.kind.name == "group" and isinstance(value, Mapping):
            inside = _options(value, {field.name: field for field in option.kind.options}, index)
            said += [f"{name}={inside}"] if inside else []
            continue
        said.append(f"{name}={spoken(value, option.kind.slot if option is not None else name, index)}")
    return f"({', '.join(said)})" if said else ""
