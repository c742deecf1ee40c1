"""Components of a resolved spec, also of its parts and of the options of other components."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from paribus.hookspecs import SLOTS
from paribus.registry import Index

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


def has_external_code(spec: Spec, index: Index) -> bool:
    """Return whether the model of a spec, or its training, has a component that does not come with Paribus."""
    return any(
        slot not in UNTRAINED_SLOTS and not index.find(slot, name).source.is_builtin
        for slot, name in components_of(spec, index)
    )
