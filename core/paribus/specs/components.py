"""Components of a resolved spec, also of its parts and of the options of other components."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from paribus.hookspecs import SLOTS
from paribus.registry import Index
from paribus.schema import Option
from paribus.specs.fields import DATA, DIMS

Spec = Mapping[str, Any]

UNTRAINED_SLOTS: Final = frozenset({"corpus", "tokenizer", "measure", "launcher"})  # no part of a training step


def components_of(spec: Spec, index: Index) -> Iterator[tuple[str, str]]:
    """Yield the (slot, name) of every component in a resolved spec, also of its parts and of nested components."""
    for slot, value in filled_slots(spec):
        yield from components_in_slot(slot, value, index)


def filled_slots(spec: Spec) -> Iterator[tuple[str, Any]]:
    """Yield each slot that a spec or one of its parts fills, with its value."""
    yield from ((slot, spec[slot]) for slot in SLOTS if spec.get(slot) is not None)
    if spec.get("evaluate") is not None:
        yield "objective", spec["evaluate"]
    for part in (spec.get("parts") or {}).values():
        yield from filled_slots(part)
        yield from filled_slots(part.get("cross") or {})


def components_in_slot(slot: str, value: Any, index: Index) -> Iterator[tuple[str, str]]:
    """Yield the (slot, name) of every component in the value of a slot."""
    for node in value if isinstance(value, (list, tuple)) else [value]:
        yield from _nested_components(slot, node, index)


def _nested_components(slot: str, node: Mapping[str, Any], index: Index) -> Iterator[tuple[str, str]]:
    """Yield a component and the components in its options."""
    yield slot, node["name"]
    for option in index.find(slot, node["name"]).options:
        if option.kind.name == "slot" and node.get(option.name) is not None:
            yield from _nested_components(option.kind.slot, node[option.name], index)


def with_new_options(spec: Spec, index: Index) -> dict[str, Any]:
    """Return a resolved spec with the defaults of the options that it lacks, as they are newer than the spec."""
    completed = dict(spec)
    for slot in (slot for slot in SLOTS if spec.get(slot) is not None):
        completed[slot] = _completed(slot, spec[slot], index)
    if spec.get("evaluate") is not None:
        completed["evaluate"] = _completed("objective", spec["evaluate"], index)
    for name, part in (spec.get("parts") or {}).items():
        changed = with_new_options(part, index)
        if part.get("cross"):
            changed["cross"] = with_new_options(part["cross"], index)
        completed["parts"] = {**completed["parts"], name: changed}
    for key, options in (("dims", DIMS), ("data", DATA)):
        if isinstance(spec.get(key), Mapping) and len(spec[key]) > 1:  # those of a part are overrides
            completed[key] = _with_defaults(spec[key], options, index) if "topology" in spec else spec[key]
    return completed


def _completed(slot: str, value: Any, index: Index) -> Any:
    """Return the components of a slot with the defaults of their newer options."""
    if isinstance(value, list | tuple):
        return [_completed(slot, node, index) for node in value]
    entry = index.entries.get(slot, {}).get(value["name"])
    return value if entry is None else _with_defaults(value, entry.options, index)


def _with_defaults(node: Mapping[str, Any], options: Sequence[Option], index: Index) -> dict[str, Any]:
    completed = dict(node)
    for option in options:
        value = completed.get(option.name)
        if option.name not in completed:
            if not option.required and (option.kind.name != "slot" or option.default is None):
                completed[option.name] = list(option.default) if isinstance(option.default, tuple) else option.default
        elif option.kind.name == "slot" and value is not None:
            completed[option.name] = _completed(option.kind.slot, value, index)
        elif option.kind.name == "group" and isinstance(value, Mapping):
            completed[option.name] = _with_defaults(value, option.kind.options, index)
    return completed


def has_external_code(spec: Spec, index: Index) -> bool:
    """Return whether the model of a spec, or its training, has a component that does not come with Paribus."""
    return any(
        slot not in UNTRAINED_SLOTS and not index.find(slot, name).source.is_builtin
        for slot, name in components_of(spec, index)
    )
