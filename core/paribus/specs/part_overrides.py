"""What stands under `parts:`: how one stack of a topology differs from the rest of the spec."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from paribus.errors import closest_match, join_names
from paribus.registry import Entry, Part
from paribus.specs.fields import CROSS, CYCLED, DIMS, NO_POSITION, PART_DIMS, check_sizes, resolve_components
from paribus.specs.synonyms import suggest_key
from paribus.specs.tree import Keys, merge_values
from paribus.specs.values import Validator


def resolve_parts(
    validator: Validator, topology: Entry | None, given: Mapping[str, Any], dims: dict[str, Any]
) -> dict[str, Any]:
    """Each part with what is its own, whole: merged over the spec, every option filled in."""
    found = validator.as_mapping(given.get("parts") or {}, ("parts",), "a mapping of parts to what differs for them")
    if found is None or topology is None:
        return {}
    known = {part.name: part for part in topology.parts}
    resolved: dict[str, Any] = {}
    for name, own in found.items():
        keys: Keys = ("parts", name)
        if name not in known:
            what = f'unknown part "{name}" of the topology {topology.name}'
            validator.add_error("unknown-part", keys, what, join_names(known), closest_match(name, known))
            continue
        if own is None:
            continue
        inside = validator.as_mapping(own, keys, "slots, dims, cross")
        if inside:
            resolved[name] = _part(validator, known[name], topology, given, inside, dims)
    return {name: part for name, part in sorted(resolved.items()) if part}


def _part(
    validator: Validator,
    part: Part,
    topology: Entry,
    given: Mapping[str, Any],
    own: Mapping[str, Any],
    dims: dict[str, Any],
) -> dict[str, Any]:
    keys: Keys = ("parts", part.name)
    slots = [slot for slot in CYCLED if slot in topology.reads and not part.recurrent]
    known = ["dims", *slots, *(["cross"] if part.cross and not part.recurrent else [])]
    for key in own:
        if key not in known:
            validator.add_unknown_key(key, (*keys, key), known)
    resolved: dict[str, Any] = {}
    sizes = _sizes(validator, own.get("dims"), (*keys, "dims"), dims)
    if sizes:
        resolved["dims"] = sizes
    around = {**dims, **sizes}
    for slot in slots:
        if own.get(slot) is not None:
            resolved[slot] = resolve_components(
                validator, slot, merge_values(given.get(slot), own[slot]), (*keys, slot), around
            )
    if "cross" in known and own.get("cross") is not None:
        attention = given.get("attention")
        if own.get("attention") is not None:
            attention = merge_values(attention, own["attention"])
        resolved["cross"] = _cross(validator, part, own["cross"], attention, around)
    return resolved


def _sizes(validator: Validator, given: Any, keys: Keys, dims: dict[str, Any]) -> dict[str, Any]:
    """The sizes of a part that are its own; those that parts share with the embedding cannot be."""
    options = [option for option in DIMS if option.name in PART_DIMS]
    names = [option.name for option in options]
    found = validator.as_mapping(given or {}, keys, join_names(names))
    if not found:
        return {}
    own = [option for option in options if option.name in found]
    for key in found:
        if key not in names:
            shared = any(option.name == key for option in DIMS)
            what = f"`{key}` is the same for all parts, which share an embedding" if shared else f'unknown key "{key}"'
            validator.add_error("unknown-key", (*keys, key), what, join_names(names), suggest_key(key, names))
    sizes = {option.name: validator.read_option(option, found[option.name], (*keys, option.name), {}) for option in own}
    check_sizes(validator, {**dims, **sizes}, keys)
    return sizes


def _cross(validator: Validator, part: Part, own: Any, attention: Any, dims: dict[str, Any]) -> dict[str, Any]:
    """The cross-attention of a part: over what the part has, as far as it says something of its own."""
    keys: Keys = ("parts", part.name, "cross")
    found = validator.as_mapping(own, keys, join_names(CROSS))
    resolved: dict[str, Any] = {}
    for key, node in (found or {}).items():
        if key not in CROSS:
            validator.add_unknown_key(key, (*keys, key), CROSS)
        elif node is not None:
            base = attention if key == "attention" else NO_POSITION
            resolved[key] = resolve_components(validator, key, merge_values(base, node), (*keys, key), dims)
    return resolved
