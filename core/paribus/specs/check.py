"""A whole spec against what is installed: everything that is wrong with it at once, or the spec with every default."""

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

UNSEEN: Final = ("dropout", "optimizer", "schedule", "trainer", "seed")  # by the rules; a study varies them most
_OBJECTS: Final = re.compile(r"_[a-z]+_|hydra(:.*)?")


def check(tree: Tree, index: Index, memory: ReadingCache | None = None) -> dict[str, Any]:
    """The resolved spec: plain values, nothing left to default; or one error with every problem.

    `memory` is of earlier checks with this index. Specs may share values with each other: none of them is changed.
    """
    memory = memory or ReadingCache()
    if memory.contains(tree.data, _refers):
        interpolation.resolve_references(tree)
    validator = Validator(tree, index)
    if memory.contains(tree.data, _names_object, key=True):
        tree.data = copy_values(tree.data)
        _no_objects(validator, tree.data, ())
    given = tree.data
    check_header(validator, given)
    for key in given:
        if key not in KEYS and key not in META:
            validator.add_unknown_key(key, (key,), KEYS)
    found = _resolved(validator, given, memory)
    topology = _entry(validator, found)
    if topology is not None:
        seen = {key: value for key, value in found.items() if key not in UNSEEN}
        for problem in memory.violations(seen, partial(_judge, validator, topology, seen)):
            validator.add_error(*problem)
        for problem in sharding_violations(index, found):
            validator.add_error(*problem)
    if validator.problems:
        raise error_from(validator.problems)
    return {key: found[key] for key in KEYS if key in found}


def _judge(validator: Validator, topology: Entry, seen: Mapping[str, Any]) -> list[Violation]:
    known = view_spec(validator, topology, seen)
    return [problem for rule in RULES for problem in rule(known)]


def _resolved(validator: Validator, given: Mapping[str, Any], memory: ReadingCache) -> dict[str, Any]:
    dims = memory.read(validator, ("dims",), given.get("dims"), NO_DIMS, partial(_dims, validator, given))
    reading = partial(_topology, validator, given, dims)
    found: dict[str, Any] = {"dims": dims}
    found["topology"] = memory.read(validator, ("topology",), given.get("topology"), dims, reading)
    topology = _entry(validator, found)
    for slot in (*ARCHITECTURE, *ALWAYS):
        if _wanted(validator, given, slot, topology):
            reading = partial(resolve_components, validator, slot, given[slot], (slot,), dims)
            found[slot] = memory.read(validator, (slot,), given[slot], dims, reading)
    for option in (DROPOUT, SEED):
        name = option.name
        found[name] = (
            validator.read_option(option, given[name], (name,), dims)
            if name in given
            else validator.read_default(option, (), dims)
        )
    data = given.get("data", {})
    data = validator.as_mapping(data if data is not None else {}, ("data",), join_names(option.name for option in DATA))
    reading = partial(validator.read_options, DATA, data or {}, ("data",), dims)
    found["data"] = memory.read(validator, ("data",), data or {}, dims, reading)
    reading = partial(resolve_trainer, validator, given)
    found["trainer"] = memory.read(validator, ("trainer",), given.get("trainer"), NO_DIMS, reading)
    found["evaluate"] = _several(validator, given, "evaluate", "objective", dims)
    if given.get("measure") is not None:
        found["measure"] = _several(validator, given, "measure", "measure", dims)
    found["parts"] = resolve_parts(validator, topology, given, dims) if given.get("parts") else memory.none
    models = {key: resolve_source(validator, given, found, key) for key in SOURCES}
    return {**found, **{key: model for key, model in models.items() if model is not None}}


def _entry(validator: Validator, found: Mapping[str, Any]) -> Entry | None:
    node = found["topology"]
    return None if node is UNREAD else validator.index.entries["topology"][node["name"]]


def _refers(text: str) -> bool:
    return "${" in text


def _names_object(key: str) -> bool:
    return key.startswith(("_", "hydra")) and bool(_OBJECTS.fullmatch(key))


def _no_objects(validator: Validator, value: Any, keys: Keys) -> None:
    """Takes out keys by which other tools name Python objects, and says that they mean nothing here."""
    if isinstance(value, dict):
        for key in [key for key in value if _OBJECTS.fullmatch(key)]:
            del value[key]
            what = f"unknown key `{key}`: specs never name Python objects, only components that are installed"
            validator.add_error("python-object", (*keys, key), what)
        for key, item in value.items():
            _no_objects(validator, item, (*keys, key))
    elif isinstance(value, list):
        for place, item in enumerate(value):
            _no_objects(validator, item, (*keys, place))


def _dims(validator: Validator, given: Mapping[str, Any]) -> dict[str, Any]:
    names = join_names(option.name for option in DIMS)
    if given.get("dims") is None:
        validator.add_error("missing", ("dims",), "`dims` is missing: the sizes of the model", names)
        return {option.name: UNREAD for option in DIMS}
    found = validator.as_mapping(given["dims"], ("dims",), names)
    if found is None:
        return {option.name: UNREAD for option in DIMS}
    dims = validator.read_options(DIMS, found, ("dims",), {})
    check_sizes(validator, dims, ("dims",))
    return dims


def _topology(validator: Validator, given: Mapping[str, Any], dims: Mapping[str, Any]) -> Any:
    if given.get("topology") is None:
        names = join_names(validator.index.names("topology"))
        return validator.add_error("missing", ("topology",), "`topology` is missing: which stacks there are", names)
    return validator.read_component("topology", given["topology"], ("topology",), dims)


def _wanted(validator: Validator, given: Mapping[str, Any], slot: str, topology: Entry | None) -> bool:
    """Whether the slot is to be checked. One that is missing, or that nothing would read, is told of here."""
    present = given.get(slot) is not None  # null takes out what a preset has
    read = slot in ALWAYS or topology is None or slot in topology.reads
    if present and not read:
        assert topology is not None, "only a known topology reads less than all"
        what = f"the topology `{topology.name}` does not read `{slot}`, so it would be ignored"
        validator.add_error("not-read", (slot,), what, f"{slot}=null; it reads {join_names(topology.reads)}")
    if read and not present and (slot in ALWAYS or topology is not None):
        why = "every spec names one" if slot in ALWAYS or topology is None else f"`{topology.name}` reads it"
        names = join_names(validator.index.names(slot))
        validator.add_error("missing", (slot,), f"`{slot}` is missing: {why}", names)
    return present and read


def _several(validator: Validator, given: Mapping[str, Any], key: str, slot: str, dims: Mapping[str, Any]) -> Any:
    """A list of components, which may be written as one."""
    if given.get(key) is None:
        return None
    listed_ = given[key] if isinstance(given[key], list) else [given[key]]
    return resolve_components(validator, slot, listed_, (key,), dims)
