"""A whole spec against what is installed: everything that is wrong with it at once, or the spec with every default."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import partial
from typing import Any, Final

from paribus.errors import listed
from paribus.registry import Entry, Index, failure
from paribus.specs import interpolation
from paribus.specs.fields import ALWAYS, ARCHITECTURE, DATA, DIMS, DROPOUT, KEYS, META, SEED, nodes, sizes_agree
from paribus.specs.model_sources import SOURCES, source
from paribus.specs.part_overrides import parts
from paribus.specs.reading_cache import NO_DIMS, Memory
from paribus.specs.rules import RULES
from paribus.specs.spec_view import Broken, facts
from paribus.specs.trainer_options import about, trainer, unstepped
from paribus.specs.tree import UNREAD, Keys, Tree, copied
from paribus.specs.values import Checking

UNSEEN: Final = ("dropout", "optimizer", "schedule", "trainer", "seed")  # by the rules; a study varies them most
_OBJECTS: Final = re.compile(r"_[a-z]+_|hydra(:.*)?")


def check(tree: Tree, index: Index, memory: Memory | None = None) -> dict[str, Any]:
    """The resolved spec: plain values, nothing left to default; or one error with every problem.

    `memory` is of earlier checks with this index. Specs may share values with each other: none of them is changed.
    """
    memory = memory or Memory()
    if memory.any(tree.data, _refers):
        interpolation.resolve(tree)
    checking = Checking(tree, index)
    if memory.any(tree.data, _names_object, key=True):
        tree.data = copied(tree.data)
        _no_objects(checking, tree.data, ())
    given = tree.data
    about(checking, given)
    for key in given:
        if key not in KEYS and key not in META:
            checking.unknown(key, (key,), KEYS)
    found = _resolved(checking, given, memory)
    topology = _entry(checking, found)
    if topology is not None:
        seen = {key: value for key, value in found.items() if key not in UNSEEN}
        for problem in memory.judged(seen, partial(_judge, checking, topology, seen)):
            checking.wrong(*problem)
        for problem in unstepped(index, found):
            checking.wrong(*problem)
    if checking.problems:
        raise failure(checking.problems)
    return {key: found[key] for key in KEYS if key in found}


def _judge(checking: Checking, topology: Entry, seen: Mapping[str, Any]) -> list[Broken]:
    known = facts(checking, topology, seen)
    return [problem for rule in RULES for problem in rule(known)]


def _resolved(checking: Checking, given: Mapping[str, Any], memory: Memory) -> dict[str, Any]:
    dims = memory.read(checking, ("dims",), given.get("dims"), NO_DIMS, partial(_dims, checking, given))
    reading = partial(_topology, checking, given, dims)
    found: dict[str, Any] = {"dims": dims}
    found["topology"] = memory.read(checking, ("topology",), given.get("topology"), dims, reading)
    topology = _entry(checking, found)
    for slot in (*ARCHITECTURE, *ALWAYS):
        if _wanted(checking, given, slot, topology):
            reading = partial(nodes, checking, slot, given[slot], (slot,), dims)
            found[slot] = memory.read(checking, (slot,), given[slot], dims, reading)
    for option in (DROPOUT, SEED):
        name = option.name
        found[name] = (
            checking.option(option, given[name], (name,), dims) if name in given else checking.default(option, (), dims)
        )
    data = given.get("data", {})
    data = checking.mapping(data if data is not None else {}, ("data",), listed(option.name for option in DATA))
    reading = partial(checking.options, DATA, data or {}, ("data",), dims)
    found["data"] = memory.read(checking, ("data",), data or {}, dims, reading)
    reading = partial(trainer, checking, given)
    found["trainer"] = memory.read(checking, ("trainer",), given.get("trainer"), NO_DIMS, reading)
    found["evaluate"] = _several(checking, given, "evaluate", "objective", dims)
    if given.get("measure") is not None:
        found["measure"] = _several(checking, given, "measure", "measure", dims)
    found["parts"] = parts(checking, topology, given, dims) if given.get("parts") else memory.none
    models = {key: source(checking, given, found, key) for key in SOURCES}
    return {**found, **{key: model for key, model in models.items() if model is not None}}


def _entry(checking: Checking, found: Mapping[str, Any]) -> Entry | None:
    node = found["topology"]
    return None if node is UNREAD else checking.index.entries["topology"][node["name"]]


def _refers(text: str) -> bool:
    return "${" in text


def _names_object(key: str) -> bool:
    return key.startswith(("_", "hydra")) and bool(_OBJECTS.fullmatch(key))


def _no_objects(checking: Checking, value: Any, keys: Keys) -> None:
    """Takes out keys by which other tools name Python objects, and says that they mean nothing here."""
    if isinstance(value, dict):
        for key in [key for key in value if _OBJECTS.fullmatch(key)]:
            del value[key]
            what = f"unknown key `{key}`: specs never name Python objects, only components that are installed"
            checking.wrong("python-object", (*keys, key), what)
        for key, item in value.items():
            _no_objects(checking, item, (*keys, key))
    elif isinstance(value, list):
        for place, item in enumerate(value):
            _no_objects(checking, item, (*keys, place))


def _dims(checking: Checking, given: Mapping[str, Any]) -> dict[str, Any]:
    names = listed(option.name for option in DIMS)
    if given.get("dims") is None:
        checking.wrong("missing", ("dims",), "`dims` is missing: the sizes of the model", names)
        return {option.name: UNREAD for option in DIMS}
    found = checking.mapping(given["dims"], ("dims",), names)
    if found is None:
        return {option.name: UNREAD for option in DIMS}
    dims = checking.options(DIMS, found, ("dims",), {})
    sizes_agree(checking, dims, ("dims",))
    return dims


def _topology(checking: Checking, given: Mapping[str, Any], dims: Mapping[str, Any]) -> Any:
    if given.get("topology") is None:
        names = listed(checking.index.names("topology"))
        return checking.wrong("missing", ("topology",), "`topology` is missing: which stacks there are", names)
    return checking.component("topology", given["topology"], ("topology",), dims)


def _wanted(checking: Checking, given: Mapping[str, Any], slot: str, topology: Entry | None) -> bool:
    """Whether the slot is to be checked. One that is missing, or that nothing would read, is told of here."""
    present = given.get(slot) is not None  # null takes out what a preset has
    read = slot in ALWAYS or topology is None or slot in topology.reads
    if present and not read:
        assert topology is not None, "only a known topology reads less than all"
        what = f"the topology `{topology.name}` does not read `{slot}`, so it would be ignored"
        checking.wrong("not-read", (slot,), what, f"{slot}=null; it reads {listed(topology.reads)}")
    if read and not present and (slot in ALWAYS or topology is not None):
        why = "every spec names one" if slot in ALWAYS or topology is None else f"`{topology.name}` reads it"
        names = listed(checking.index.names(slot))
        checking.wrong("missing", (slot,), f"`{slot}` is missing: {why}", names)
    return present and read


def _several(checking: Checking, given: Mapping[str, Any], key: str, slot: str, dims: Mapping[str, Any]) -> Any:
    """A list of components, which may be written as one."""
    if given.get(key) is None:
        return None
    listed_ = given[key] if isinstance(given[key], list) else [given[key]]
    return nodes(checking, slot, listed_, (key,), dims)
