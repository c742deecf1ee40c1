"""The models that a component is tried in: the tiny presets with the component put in, among different neighbours."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, final

from paribus.errors import SpecError
from paribus.planning.identity import components_of
from paribus.registry import Entry, Registry
from paribus.registry.plugin_sources import BUILTIN
from paribus.schema import Option
from paribus.specs import resolved
from paribus.specs.fields import ARCHITECTURE, NO_POSITION
from paribus.specs.load import Source
from paribus.specs.training_rules import IN_TEXT, misfit, unasked
from paribus.testing.small_model import Specimen

GIVEN: Final = "the given spec"
MOST: Final = 2  # values of a number that are tried
PRESETS: Final = ("encoder-tiny", "gpt-tiny", "seq2seq-tiny")  # rows that see both sides, the past, another stack
OTHERWISE: Final = ("vit-tiny", "vit-digits", "transformer-tiny", "rnnsearch-tiny")  # what none of the others takes
SMALL: Final[Mapping[str, Any]] = {
    "dims.width": 16,
    "dims.layers": 2,
    "dims.heads": 4,
    "dims.head_width": None,
    "dims.length": 128,  # long enough for every kernel; most checks feed far fewer rows
    "dims.vocabulary": None,
    "data.batch": 8,
    "data.workers": 0,
}
_TOGETHER: Final = {"topology": "objective", "objective": "topology"}  # a stack that nothing gives rows to, and back
_BESIDE: Final = {"attention": "position", "position": "attention", "norm": "placement", "placement": "norm"}


class Cell(NamedTuple):
    """A model that the component is tried in."""

    said: str  # "gpt-tiny, position=rope"
    spec: Mapping[str, Any]
    plain: bool = True  # a preset as it is, but for the component


@final
@dataclass
class Case:
    """One component, and the models that it has been built into so far."""

    registry: Registry
    entry: Entry
    bases: Mapping[str, Mapping[str, Any]]  # by what a report calls them
    cells: list[Cell] = field(default_factory=list)
    refusals: list[str] = field(default_factory=list)
    _built: dict[str, Specimen] = field(default_factory=dict)

    @property
    def topic(self) -> str:
        return f"{self.entry.slot}.{self.entry.name}"

    @property
    def component(self) -> type[Any]:
        return self.registry.get(self.entry.slot, self.entry.name)

    def specimen(self, cell: Cell) -> Specimen:
        if cell.said not in self._built:
            self._built[cell.said] = Specimen(cell.spec, self.registry)
        return self._built[cell.said]

    def refuses(self, cell: Cell) -> bool:
        """Whether a component says while it is built that its options do not go together; another error is a fault."""
        try:
            self.specimen(cell)
        except SpecError:
            return True
        except Exception:  # whoever builds it next tells of it
            return False
        return False

    def all_have(self, cell: Cell, *traits: str) -> bool:
        """Whether every attention of the model declares one of these of itself."""
        named = [name for slot, name in components_of(cell.spec, self.registry.index) if slot == "attention"]
        declared = [self.registry.index.find("attention", name).traits for name in named]
        return all(any(each.get(trait, False) for trait in traits) for each in declared)

    def resolved(self, base: str, changes: Mapping[str, Any]) -> dict[str, Any]:
        """A base with the component in it, and with these changes."""
        return resolved({**self.bases[base], **changes}, registry=self.registry)

    def around(self, base: str, node: Mapping[str, Any]) -> dict[str, Any]:
        """What puts the component into a base: an attention only where it can stand, and beside what it can; a topology
        without what it does not read."""
        made: dict[str, Any] = {self.entry.slot: node}
        if "teacher" in self.entry.traits.get("needs", []):
            made["teacher"] = {"sha256": "under test"}  # which one there is decides who makes the model
        if self.entry.slot == "topology":
            made |= {slot: None for slot in ARCHITECTURE if slot not in self.entry.reads}
        if self.entry.slot == "objective":
            made |= self._telling(base, made)
        if self.entry.slot != "attention":
            return made
        plain = self.resolved(base, {})
        if plain.get("position") is not None and self._unasked(plain["position"]):
            made["position"] = {"name": NO_POSITION}
        parts = self.registry.index.entries["topology"][plain["topology"]["name"]].parts
        for part in parts if len(parts) > 1 else ():
            if part.causal and not self.entry.traits.get("causal"):
                made[f"parts.{part.name}.attention"] = plain["attention"]
            if part.cross:
                crosses = self.entry.traits.get("cross")
                made[f"parts.{part.name}.cross.attention"] = node if crosses else plain["attention"]
        return made

    def _telling(self, base: str, made: Mapping[str, Any]) -> dict[str, Any]:
        """The first corpus that tells what the component, an objective, needs, where the base's own does not."""
        needed = IN_TEXT.intersection(self.entry.traits.get("needs", []))
        corpora = self.registry.index.entries["corpus"].values()
        telling = [entry for entry in corpora if needed <= {*entry.traits.get("provides", [])}]
        for told in ({}, *({"corpus": example(entry)} for entry in telling)) if needed else ():
            try:
                self.resolved(base, {**made, **told})
            except SpecError:
                continue  # it tells nothing, has more classes, or is of images
            return told
        return {}

    def _unasked(self, position: Any) -> bool:
        """Whether a base's position does what the component, an attention, never asks for."""
        asked = {*self.entry.traits.get("position_hooks", []), "embed"}
        named = position if isinstance(position, list) else [position]
        found = [self.registry.index.find("position", node["name"]) for node in named]
        return any(not {*entry.traits.get("hooks", [])} <= asked for entry in found)


def bases(given: Source | None, registry: Registry) -> dict[str, Mapping[str, Any]]:
    """What a component is put into: a spec that its author names, or the tiny presets made smaller still."""
    if given is not None:
        return {GIVEN: resolved(given, registry=registry)}
    whole = {key: size for key, size in SMALL.items() if key != "dims.length"}  # an image has as many rows as it has
    found: dict[str, Mapping[str, Any]] = {name: {"preset": name, **SMALL} for name in PRESETS}
    return found | {name: {"preset": name, **whole} for name in OTHERWISE if name in registry.index.presets}


def cells(case: Case) -> Iterator[Cell]:
    """Every model that the rules let the component into."""
    node = _named(case)
    tried = {base: case.around(base, node) for base in case.bases}
    if case.entry.slot in _TOGETHER and not any(_fits(case, base, changes) for base, changes in tried.items()):
        tried = {base: {**changes, **_partner(case)} for base, changes in tried.items()}
    taken, fitting = False, None
    for base, changes in tried.items():
        if taken and base in OTHERWISE:
            break
        try:
            spec = case.resolved(base, changes)
        except SpecError as error:
            case.refusals.append(f"{base}: {error.problems[0].message}")
            continue
        taken = True
        yield Cell(base, spec)
        if fitting is None or (causal(case, spec) and not causal(case, fitting.spec)):
            fitting = Cell(base, spec)
        for neighbour in _neighbours(case, spec):
            beside = f"{neighbour.slot}={neighbour.name}"
            try:
                yield Cell(
                    f"{base}, {beside}",
                    case.resolved(base, {**changes, neighbour.slot: example(neighbour)}),
                    plain=False,
                )
            except SpecError:
                continue  # the two do not go together, and a rule says so
    if fitting is not None:
        yield from _otherwise(case, fitting, tried[fitting.said])


def causal(case: Case, spec: Mapping[str, Any]) -> bool:
    """Whether the body sees only what came before."""
    parts = case.registry.index.entries["topology"][spec["topology"]["name"]].parts
    return next(part.causal for part in parts if part.path == "body")


def _otherwise(case: Case, plain: Cell, changes: Mapping[str, Any]) -> Iterator[Cell]:
    """The same model with other values of the component's own options: each choice, and two of each number."""
    node = _named(case)
    for option in case.entry.options if case.entry.slot in (*ARCHITECTURE, "topology") else ():
        found = 0
        for value in values(option, plain.spec) if option.kind.name not in ("group", "slot") else ():
            if found == MOST and option.kind.name not in ("choice", "bool"):
                break
            changed = {**changes, **case.around(plain.said, {**node, option.name: value})}
            try:
                cell = Cell(f"{plain.said}, {option.name}={value}", case.resolved(plain.said, changed), plain=False)
            except SpecError:
                continue  # the value is not valid here
            if case.refuses(cell):
                continue
            if cell.spec != plain.spec:
                found += 1
                yield cell


def _fits(case: Case, base: str, changes: Mapping[str, Any]) -> bool:
    try:
        case.resolved(base, changes)
    except SpecError:
        return False
    return True


def _partner(case: Case) -> dict[str, Any]:
    """The first objective that can train a topology that no base's own can, or the first topology for an objective."""
    slot = _TOGETHER[case.entry.slot]
    for entry in case.registry.index.entries[slot].values():
        pair = (case.entry, entry) if slot == "topology" else (entry, case.entry)
        if not misfit(*pair) and not unasked(pair[1], pair[0].traits.get("needs", [])):
            return {slot: example(entry)}
    return {}


def _named(case: Case) -> dict[str, Any]:
    """The component with the options that the author's spec gives it, if it has one and names it; else an example."""
    found = case.bases.get(GIVEN, {}).get(case.entry.slot)
    return dict(found) if isinstance(found, Mapping) and found["name"] == case.entry.name else example(case.entry)


def example(entry: Entry) -> dict[str, Any]:
    """The component as a spec names it, with an example for each option that has no default."""
    return {"name": entry.name, **{option.name: option.sample for option in entry.options if option.required}}


def _neighbours(case: Case, spec: Mapping[str, Any]) -> Iterator[Entry]:
    """The first built-in component of each kind that works hand in hand with this one.

    Two that declare the same of themselves are one kind. Where there are several stacks nothing new is met.
    """
    index = case.registry.index
    beside = _BESIDE.get(case.entry.slot)
    if beside is None or len(index.entries["topology"][spec["topology"]["name"]].parts) > 1:
        return
    there = {name for slot, name in components_of(spec, index) if slot == beside}
    seen = [index.entries[beside][name].traits for name in there]
    for entry in index.entries[beside].values():
        if entry.source.distribution == BUILTIN and entry.traits not in seen:
            seen.append(entry.traits)
            yield entry


def values(option: Option, spec: Mapping[str, Any]) -> list[Any]:
    """Other values that an option might be given; whether each is valid is for the spec's check to say."""
    kind, given = option.kind, option.sample
    found: list[Any] = []
    if kind.name == "choice":
        found = list(kind.choices)
    elif kind.name == "bool":
        found = [True, False]
    elif kind.name == "int":
        found = [2 * given, given // 2, given + 1] if isinstance(given, int) else []
        found += [1, 2, 3, 4, *(2 * size for size in spec["dims"].values() if isinstance(size, int))]
    elif kind.name == "float":
        found = [given / 2, given * 2] if isinstance(given, (int, float)) and given else []
        found += [0.5, 0.1, 2.0]
    if kind.optional:
        found.append(None)
    return [value for place, value in enumerate(found) if value != given and value not in found[:place]]
