"""What the rules look at: the stacks of a spec, with the components of each and where they are named."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import cycle, islice
from typing import Any, NamedTuple, final

from paribus.errors import join_names
from paribus.registry import Entry, Index, Part
from paribus.specs.fields import NO_POSITION
from paribus.specs.tree import Keys
from paribus.specs.values import Validator


class Violation(NamedTuple):
    """A rule that does not hold: as `Checking.wrong` takes it."""

    code: str
    keys: Keys
    message: str
    valid: str = ""


class NamedComponent(NamedTuple):
    """A component of a spec, and where it is named."""

    entry: Entry
    keys: Keys

    def has_trait(self, trait: str) -> bool:
        return bool(self.entry.traits.get(trait, False))

    def list_trait(self, trait: str) -> list[str]:
        found = self.entry.traits.get(trait, [])
        return [str(item) for item in found] if isinstance(found, list) else []

    def __str__(self) -> str:
        return f"{self.entry.slot} `{self.entry.name}`"


class AttentionPair(NamedTuple):
    """An attention and the position that it meets in some layer."""

    attention: NamedComponent
    position: NamedComponent | None


@final
@dataclass(frozen=True)
class Stack:
    """One stack: what mixes its rows, layer by layer, each different pair once."""

    part: Part
    self_attention: tuple[AttentionPair, ...]
    cross_attention: tuple[AttentionPair, ...]


@final
@dataclass(frozen=True)
class SpecView:
    """A spec as the rules see it. What could not be read is left out: it has been told of."""

    index: Index
    topology: Entry
    stacks: tuple[Stack, ...]
    objectives: tuple[NamedComponent, ...]
    evaluated: tuple[NamedComponent, ...]
    measures: tuple[NamedComponent, ...]
    spec: Mapping[str, Any]

    @property
    def body(self) -> Part:
        return next(part for part in self.topology.parts if part.path == "body")

    def component(self, slot: str) -> NamedComponent | None:
        node = self.spec.get(slot)
        return _named(self.index, slot, node, (slot,)) if isinstance(node, Mapping) else None

    def options_of(self, named: NamedComponent) -> Mapping[str, Any]:
        """The options that a component is given."""
        node: Any = self.spec
        for key in named.keys:
            node = node[key]
        given: Mapping[str, Any] = node
        return given

    def sizes(self, part: Part) -> Mapping[str, Any]:
        """The dims of one part."""
        own: Mapping[str, Any] = _own(self.spec, part).get("dims", {})
        return {**self.spec["dims"], **own}

    def slot_of(self, part: Part, slot: str) -> tuple[Any, Keys]:
        """What fills a slot of one part, and where that is said."""
        return _around(self.spec, part, slot)

    def components(self, slot: str, node: Any, keys: Keys) -> tuple[NamedComponent, ...]:
        """The components that a node names."""
        return _all(self.index, slot, node, keys)

    def entries(self, slot: str) -> tuple[Entry, ...]:
        """All that could fill a slot."""
        return tuple(self.index.entries[slot].values())

    def names_with(self, slot: str, *traits: str) -> str:
        """The names of those that have one of the traits, for whoever wants to know what would do."""
        fitting = [entry.name for entry in self.entries(slot) if any(entry.traits.get(trait) for trait in traits)]
        return join_names(fitting) or "(none is installed)"


def view_spec(validator: Validator, topology: Entry, spec: Mapping[str, Any]) -> SpecView:
    index = validator.index
    return SpecView(
        index,
        topology,
        tuple(_stack(index, part, spec) for part in topology.parts),
        _all(index, "objective", spec.get("objective"), ("objective",)),
        _all(index, "objective", spec.get("evaluate"), ("evaluate",)),
        _all(index, "measure", spec.get("measure"), ("measure",)),
        spec,
    )


def _stack(index: Index, part: Part, spec: Mapping[str, Any]) -> Stack:
    own = _own(spec, part)
    layers = own.get("dims", {}).get("layers", spec["dims"]["layers"])
    attention, position = _around(spec, part, "attention"), _around(spec, part, "position")
    crossing: tuple[AttentionPair, ...] = ()
    if part.cross:
        inside = own.get("cross") or {}
        keys: Keys = ("parts", part.name, "cross")
        seeks = (inside["attention"], (*keys, "attention")) if "attention" in inside else attention
        placed = inside.get("position", {"name": NO_POSITION})
        crossing = _mixings(index, seeks, (placed, (*keys, "position")), layers)
    return Stack(part, () if part.recurrent else _mixings(index, attention, position, layers), crossing)


def _own(spec: Mapping[str, Any], part: Part) -> Mapping[str, Any]:
    parts = spec.get("parts")
    own: Mapping[str, Any] = parts.get(part.name, {}) if isinstance(parts, Mapping) else {}
    return own


def _around(spec: Mapping[str, Any], part: Part, slot: str) -> tuple[Any, Keys]:
    own = _own(spec, part)
    return (own[slot], ("parts", part.name, slot)) if slot in own else (spec.get(slot), (slot,))


def _mixings(
    index: Index, attention: tuple[Any, Keys], position: tuple[Any, Keys], layers: object
) -> tuple[AttentionPair, ...]:
    attentions = _all(index, "attention", *attention)
    positions: tuple[NamedComponent | None, ...] = _all(index, "position", *position) or (None,)
    if not attentions:
        return ()
    most = min(layers, len(attentions) * len(positions)) if isinstance(layers, int) else len(attentions)
    pairs = islice(zip(cycle(attentions), cycle(positions), strict=False), most)
    different = {(own.keys, placed.keys if placed else None): AttentionPair(own, placed) for own, placed in pairs}
    return tuple(different.values())


def _all(index: Index, slot: str, node: Any, keys: Keys) -> tuple[NamedComponent, ...]:
    return tuple(_each(index, slot, node, keys))


def _each(index: Index, slot: str, node: Any, keys: Keys) -> Iterator[NamedComponent]:
    listed = enumerate(node) if isinstance(node, list) else [(None, node)]
    for place, item in listed:
        if isinstance(item, Mapping):
            named = _named(index, slot, item, keys if place is None else (*keys, place))
            if named is not None:
                yield named


def _named(index: Index, slot: str, node: Mapping[str, Any], keys: Keys) -> NamedComponent | None:
    entry = index.entries[slot].get(node["name"])
    return None if entry is None else NamedComponent(entry, keys)
