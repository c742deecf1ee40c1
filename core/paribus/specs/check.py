"""Validation of a whole spec: the spec with every default, or one error with every problem."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import partial
from typing import Any, Final

from paribus.errors import join_names
from paribus.registry import Entry, Index, error_from
from paribus.specs import interpolation
from paribus.specs.fields import (
    ALWAYS,
    ARCHITECTURE,
    DATA,
    DIMS,
    DROPOUT,
    KEYS,
    META,
    SEED,
    check_sizes,
    resolve_components,
)
from paribus.specs.model_sources import SOURCES, resolve_source
from paribus.specs.part_overrides import resolve_parts
from paribus.specs.reading_cache import NO_DIMS, ReadingCache
from paribus.specs.rules import RULES
from paribus.specs.spec_view import Violation, view_spec
from paribus.specs.trainer_options import check_header, resolve_trainer, sharding_violations
from paribus.specs.tree import UNREAD, Keys, Tree, copy_values
from paribus.specs.values import Validator

UNSEEN: Final = ("dropout", "optimizer", "schedule", "trainer", "seed")  # not read by rules; studies vary these most
_OBJECTS: Final = re.compile(r"_[a-z]+_|hydra(:.*)?")


def check(tree: Tree, index: Index, memory: ReadingCache | None = None) -> dict[str, Any]:
    """Return the resolved spec, plain values with every default, or raise one error with every problem.

    `memory` caches earlier checks with this index. Specs may share values: none is changed.
    """
    memory = memory or ReadingCache()
    if memory.contains(tree.data, _refers):
        interpolation.resolve_references(tree)
    validator = Validator(tree, index)
    if memory.contains(tree.data, _names_object, key=True):
        tree.data = copy_values(tree.data)
        _no_objects(validator, tree.data, ())
    data = tree.data
    check_header(validator, data)
    for key in data:
        if key not in KEYS and key not in META:
            validator.add_unknown_key(key, (key,), KEYS)
    resolved = _resolved(validator, data, memory)
    topology = _entry(validator, resolved)
    if topology is not None:
        visible = {key: value for key, value in resolved.items() if key not in UNSEEN}
        for problem in memory.violations(visible, partial(_judge, validator, topology, visible)):
            validator.add_error(*problem)
        for problem in sharding_violations(index, resolved):
            validator.add_error(*problem)
    if validator.problems:
        raise error_from(validator.problems)
    return {key: resolved[key] for key in KEYS if key in resolved}


def _judge(validator: Validator, topology: Entry, spec: Mapping[str, Any]) -> list[Violation]:
    view = view_spec(validator, topology, spec)
    return [problem for rule in RULES for problem in rule(view)]


def _resolved(validator: Validator, given: Mapping[str, Any], memory: ReadingCache) -> dict[str, Any]:
    dims = memory.read(validator, ("dims",), given.get("dims"), NO_DIMS, partial(_dims, validator, given))
    reading = partial(_topology, validator, given, dims)
    resolved: dict[str, Any] = {"dims": dims}
    resolved["topology"] = memory.read(validator, ("topology",), given.get("topology"), dims, reading)
    topology = _entry(validator, resolved)
    for slot in (*ARCHITECTURE, *ALWAYS):
        if _wanted(validator, given, slot, topology):
            reading = partial(resolve_components, validator, slot, given[slot], (slot,), dims)
            resolved[slot] = memory.read(validator, (slot,), given[slot], dims, reading)
    for option in (DROPOUT, SEED):
        name = option.name
        resolved[name] = (
            validator.read_option(option, given[name], (name,), dims)
            if name in given
            else validator.read_default(option, (), dims)
        )
    loader = given.get("data", {})
    loader = validator.as_mapping(
        loader if loader is not None else {}, ("data",), join_names(option.name for option in DATA)
    )
    reading = partial(validator.read_options, DATA, loader or {}, ("data",), dims)
    resolved["data"] = memory.read(validator, ("data",), loader or {}, dims, reading)
    reading = partial(resolve_trainer, validator, given)
    resolved["trainer"] = memory.read(validator, ("trainer",), given.get("trainer"), NO_DIMS, reading)
    resolved["evaluate"] = _several(validator, given, "evaluate", "objective", dims)
    if given.get("measure") is not None:
        resolved["measure"] = _several(validator, given, "measure", "measure", dims)
    resolved["parts"] = resolve_parts(validator, topology, given, dims) if given.get("parts") else memory.none
    models = {key: resolve_source(validator, given, resolved, key) for key in SOURCES}
    return {**resolved, **{key: model for key, model in models.items() if model is not None}}


def _entry(validator: Validator, resolved: Mapping[str, Any]) -> Entry | None:
    node = resolved["topology"]
    return None if node is UNREAD else validator.index.entries["topology"][node["name"]]


def _refers(text: str) -> bool:
    return "${" in text


def _names_object(key: str) -> bool:
    return key.startswith(("_", "hydra")) and bool(_OBJECTS.fullmatch(key))


def _no_objects(validator: Validator, value: Any, keys: Keys) -> None:
    """Remove keys by which other tools name Python objects, and report them."""
    if isinstance(value, dict):
        for key in [key for key in value if _OBJECTS.fullmatch(key)]:
            del value[key]
            message = f"unknown key `{key}`: specs never name Python objects, only components that are installed"
            validator.add_error("python-object", (*keys, key), message)
        for key, item in value.items():
            _no_objects(validator, item, (*keys, key))
    elif isinstance(value, list):
        for index, item in enumerate(value):
            _no_objects(validator, item, (*keys, index))


def _dims(validator: Validator, data: Mapping[str, Any]) -> dict[str, Any]:
    names = join_names(option.name for option in DIMS)
    if data.get("dims") is None:
        validator.add_error("missing", ("dims",), "`dims` is missing: the sizes of the model", names)
        return {option.name: UNREAD for option in DIMS}
    dims_node = validator.as_mapping(data["dims"], ("dims",), names)
    if dims_node is None:
        return {option.name: UNREAD for option in DIMS}
    dims = validator.read_options(DIMS, dims_node, ("dims",), {})
    check_sizes(validator, dims, ("dims",))
    return dims


def _topology(validator: Validator, data: Mapping[str, Any], dims: Mapping[str, Any]) -> Any:
    if data.get("topology") is None:
        names = join_names(validator.index.names("topology"))
        return validator.add_error("missing", ("topology",), "`topology` is missing: the stacks of the model", names)
    return validator.read_component("topology", data["topology"], ("topology",), dims)


def _wanted(validator: Validator, data: Mapping[str, Any], slot: str, topology: Entry | None) -> bool:
    """Return whether to read a slot; report one that is missing or unused."""
    present = data.get(slot) is not None  # null removes the value of a preset
    read = slot in ALWAYS or topology is None or slot in topology.reads
    if present and not read:
        assert topology is not None, "only a known topology reads less than all"
        message = f"the topology `{topology.name}` does not use `{slot}`"
        validator.add_error("not-read", (slot,), message, f"{slot}=null; it uses {join_names(topology.reads)}")
    if read and not present and (slot in ALWAYS or topology is not None):
        reason = "every spec needs one" if slot in ALWAYS or topology is None else f"`{topology.name}` uses it"
        names = join_names(validator.index.names(slot))
        validator.add_error("missing", (slot,), f"`{slot}` is missing: {reason}", names)
    return present and read


def _several(validator: Validator, data: Mapping[str, Any], key: str, slot: str, dims: Mapping[str, Any]) -> Any:
    """Read a list of components, or a single one."""
    if data.get(key) is None:
        return None
    items = data[key] if isinstance(data[key], list) else [data[key]]
    return resolve_components(validator, slot, items, (key,), dims)
