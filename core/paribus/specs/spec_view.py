"""View of a spec for the rules: its stacks, with their components and locations."""

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
    """Violation of a rule: the arguments of `Validator.add_error`."""

    code: str
    keys: Keys
    message: str
    valid: str = ""


class NamedComponent(NamedTuple):
    """Component of a spec, with its path."""

    entry: Entry
    keys: Keys

    def has_trait(self, trait: str) -> bool:
        return bool(self.entry.traits.get(trait, False))

    def list_trait(self, trait: str) -> list[str]:
        items = self.entry.traits.get(trait, [])
        return [str(item) for item in items] if isinstance(items, list) else []

    def __str__(self) -> str:
        return f"{self.entry.slot} `{self.entry.name}`"


class AttentionPair(NamedTuple):
    """Attention and position of some layer."""

    attention: NamedComponent
    position: NamedComponent | None


@final
@dataclass(frozen=True)
class Stack:
    """One stack, with each different pair of attention and position."""

    part: Part
    self_attention: tuple[AttentionPair, ...]
    cross_attention: tuple[AttentionPair, ...]


@final
@dataclass(frozen=True)
class SpecView:
    """Spec as the rules see it, without values that are already reported as invalid."""

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
        """Return the options of a component."""
        node: Any = self.spec
        for key in named.keys:
            node = node[key]
        options: Mapping[str, Any] = node
        return options

    def sizes(self, part: Part) -> Mapping[str, Any]:
        """Return the dims of one part."""
        overrides: Mapping[str, Any] = _own(self.spec, part).get("dims", {})
        return {**self.spec["dims"], **overrides}

    def slot_of(self, part: Part, slot: str) -> tuple[Any, Keys]:
        """Return the value of a slot of one part, and its path."""
        return _around(self.spec, part, slot)

    def components(self, slot: str, node: Any, keys: Keys) -> tuple[NamedComponent, ...]:
        """Return the components of a node."""
        return _all(self.index, slot, node, keys)

    def entries(self, slot: str) -> tuple[Entry, ...]:
        """Return all components of a slot."""
        return tuple(self.index.entries[slot].values())

    def names_with(self, slot: str, *traits: str) -> str:
        """Return the names of the components with one of the traits, as a list of valid values."""
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
    overrides = _own(spec, part)
    layers = overrides.get("dims", {}).get("layers", spec["dims"]["layers"])
    attention, position = _around(spec, part, "attention"), _around(spec, part, "position")
    cross_pairs: tuple[AttentionPair, ...] = ()
    if part.cross:
        cross = overrides.get("cross") or {}
        keys: Keys = ("parts", part.name, "cross")
        cross_attention = (cross["attention"], (*keys, "attention")) if "attention" in cross else attention
        cross_position = cross.get("position", {"name": NO_POSITION})
        cross_pairs = _mixings(index, cross_attention, (cross_position, (*keys, "position")), layers)
    return Stack(part, () if part.recurrent else _mixings(index, attention, position, layers), cross_pairs)


def _own(spec: Mapping[str, Any], part: Part) -> Mapping[str, Any]:
    parts = spec.get("parts")
    overrides: Mapping[str, Any] = parts.get(part.name, {}) if isinstance(parts, Mapping) else {}
    return overrides


def _around(spec: Mapping[str, Any], part: Part, slot: str) -> tuple[Any, Keys]:
    overrides = _own(spec, part)
    return (overrides[slot], ("parts", part.name, slot)) if slot in overrides else (spec.get(slot), (slot,))


def _mixings(
    index: Index, attention: tuple[Any, Keys], position: tuple[Any, Keys], layers: object
) -> tuple[AttentionPair, ...]:
    attentions = _all(index, "attention", *attention)
    positions: tuple[NamedComponent | None, ...] = _all(index, "position", *position) or (None,)
    if not attentions:
        return ()
    limit = min(layers, len(attentions) * len(positions)) if isinstance(layers, int) else len(attentions)
    pairs = islice(zip(cycle(attentions), cycle(positions), strict=False), limit)
    unique = {
        (attention_node.keys, position_node.keys if position_node else None): AttentionPair(
            attention_node, position_node
        )
        for attention_node, position_node in pairs
    }
    return tuple(unique.values())


def _all(index: Index, slot: str, node: Any, keys: Keys) -> tuple[NamedComponent, ...]:
    return tuple(_each(index, slot, node, keys))


def _each(index: Index, slot: str, node: Any, keys: Keys) -> Iterator[NamedComponent]:
    items = enumerate(node) if isinstance(node, list) else [(None, node)]
    for place, item in items:
        if isinstance(item, Mapping):
            named = _named(index, slot, item, keys if place is None else (*keys, place))
            if named is not None:
                yield named


def _named(index: Index, slot: str, node: Mapping[str, Any], keys: Keys) -> NamedComponent | None:
    entry = index.entries[slot].get(node["name"])
    return None if entry is None else NamedComponent(entry, keys)
