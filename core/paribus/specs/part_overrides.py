"""Overrides for single stacks of a topology, under `parts:`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from paribus.errors import closest_match, join_names
from paribus.registry import Entry, Part
from paribus.specs.fields import CROSS, CYCLED, DIMS, NO_POSITION, PART_DIMS
from paribus.specs.tree import Keys, merge_values
from paribus.specs.values import Validator, check_sizes, resolve_components


def resolve_parts(
    validator: Validator, topology: Entry | None, data: Mapping[str, Any], dims: dict[str, Any]
) -> dict[str, Any]:
    """Return the overrides of each part, merged over the spec, with every default."""
    nodes = validator.as_mapping(data.get("parts") or {}, ("parts",), "a mapping of parts to what differs for them")
    if nodes is None or topology is None:
        return {}
    known_parts = {part.name: part for part in topology.parts}
    resolved: dict[str, Any] = {}
    for name, node in nodes.items():
        keys: Keys = ("parts", name)
        if name not in known_parts:
            message = f'unknown part "{name}" of the topology {topology.name}'
            validator.add_error(
                "unknown-part", keys, message, join_names(known_parts), closest_match(name, known_parts)
            )
            continue
        if node is None:
            continue
        overrides = validator.as_mapping(node, keys, "slots, dims, cross")
        if overrides:
            resolved[name] = _part(validator, known_parts[name], topology, data, overrides, dims)
    return {name: part for name, part in sorted(resolved.items()) if part}


def _part(
    validator: Validator,
    part: Part,
    topology: Entry,
    data: Mapping[str, Any],
    overrides: Mapping[str, Any],
    dims: dict[str, Any],
) -> dict[str, Any]:
    keys: Keys = ("parts", part.name)
    slots = [slot for slot in CYCLED if slot in topology.reads and not part.recurrent]
    known_keys = ["dims", *slots, *(["cross"] if part.cross and not part.recurrent else [])]
    validator.check_keys(overrides, keys, known_keys)
    resolved: dict[str, Any] = {}
    sizes = _sizes(validator, overrides.get("dims"), (*keys, "dims"), dims)
    if sizes:
        resolved["dims"] = sizes
    part_dims = {**dims, **sizes}
    for slot in slots:
        if overrides.get(slot) is not None:
            resolved[slot] = resolve_components(
                validator, slot, merge_values(data.get(slot), overrides[slot]), (*keys, slot), part_dims
            )
    if "cross" in known_keys and overrides.get("cross") is not None:
        attention = data.get("attention")
        if overrides.get("attention") is not None:
            attention = merge_values(attention, overrides["attention"])
        resolved["cross"] = _cross(validator, part, overrides["cross"], attention, part_dims)
    return resolved


def _sizes(validator: Validator, node: Any, keys: Keys, dims: dict[str, Any]) -> dict[str, Any]:
    """Read the dims of a part; dims that parts share with the embedding cannot be overridden."""
    options, valid = [option for option in DIMS if option.name in PART_DIMS], join_names(PART_DIMS)
    given = dict(validator.as_mapping(node or {}, keys, valid) or {})
    for name in {option.name for option in DIMS} & given.keys() - set(PART_DIMS):
        del given[name]
        message = f"`{name}` cannot be overridden: all parts share an embedding"
        validator.add_error("unknown-key", (*keys, name), message, valid)
    sizes = validator.read_given(options, given, keys, {})
    if sizes:
        check_sizes(validator, {**dims, **sizes}, keys)
    return sizes


def _cross(validator: Validator, part: Part, own: Any, attention: Any, dims: dict[str, Any]) -> dict[str, Any]:
    """Read the cross-attention of a part, merged over the attention of the part."""
    keys: Keys = ("parts", part.name, "cross")
    overrides = validator.as_mapping(own, keys, join_names(CROSS))
    validator.check_keys(overrides or {}, keys, CROSS)
    bases = {"attention": attention, "position": NO_POSITION}
    return {
        key: resolve_components(validator, key, merge_values(bases[key], node), (*keys, key), dims)
        for key, node in (overrides or {}).items()
        if key in CROSS and node is not None
    }
