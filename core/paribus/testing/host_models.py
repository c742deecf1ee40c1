"""Models for conformance checks: tiny presets that contain the component, with other components next to it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final, NamedTuple, final

from paribus.errors import SpecError
from paribus.registry import Entry, Registry
from paribus.registry.component_index import BUILTIN
from paribus.schema import Option
from paribus.specs import resolved
from paribus.specs.components import components_of
from paribus.specs.fields import ARCHITECTURE, NO_POSITION
from paribus.specs.load import Source
from paribus.specs.training_rules import IN_TEXT, misfit, unasked
from paribus.testing.small_model import SmallModel

HOLDS: Final = ""
DOES_NOT_APPLY: Final = None

Verdict = str | None
"""Result of one check in one model: a message about the failure, HOLDS, or DOES_NOT_APPLY."""

USER_SPEC: Final = "the given spec"
MAX_NUMERIC_VALUES: Final = 2  # alternative values of a numeric option
PRESETS: Final = ("encoder-tiny", "gpt-tiny", "seq2seq-tiny")  # bidirectional, causal, cross-attention
# Presets for components that are valid in none of PRESETS.
FALLBACK_PRESETS: Final = ("vit-tiny", "vit-digits", "transformer-tiny", "rnnsearch-tiny", "elmo-tiny")
SMALL_SIZES: Final[Mapping[str, Any]] = {
    "dims.width": 16,
    "dims.layers": 2,
    "dims.heads": 4,
    "dims.head_width": None,
    "dims.length": 128,  # long enough for every kernel; most checks use far fewer tokens
    "dims.vocabulary": None,
    "data.batch": 8,
    "data.workers": 0,
}
# A topology may need an objective that feeds its stacks, and an objective a topology that has them.
_PARTNER_SLOTS: Final = {"topology": "objective", "objective": "topology"}
_NEIGHBOUR_SLOTS: Final = {"attention": "position", "position": "attention", "norm": "placement", "placement": "norm"}


class HostModel(NamedTuple):
    """Spec of a model that contains the component."""

    label: str  # "gpt-tiny, position=rope"
    spec: Mapping[str, Any]
    is_preset: bool = True  # a preset with no other change than the component
    neighbour: Mapping[str, Any] = MappingProxyType({})  # component beside the one under test

    @property
    def base(self) -> str:
        """The name of the spec that the component was inserted into."""
        return self.label.partition(", ")[0]


@final
@dataclass
class Case:
    """Component under test, with a cache of the models that contain it."""

    registry: Registry
    entry: Entry
    base_specs: Mapping[str, Mapping[str, Any]]  # by the name that a report prints
    reference: Callable[..., Any] | Mapping[str, Callable[..., Any]] | None = None  # the author's, to compare with
    host_models: list[HostModel] = field(default_factory=list)
    rejections: list[str] = field(default_factory=list)
    setups: dict[tuple[str, ...], Any] = field(default_factory=dict)  # models and data that checks share
    obstacles: list[str] = field(default_factory=list)  # files and libraries that checks lack
    partner: Mapping[str, Any] = field(default_factory=dict)  # the objective of a topology, or topology of an objective
    _models: dict[str, SmallModel] = field(default_factory=dict)

    @property
    def topic(self) -> str:
        return f"{self.entry.slot}.{self.entry.name}"

    @property
    def component(self) -> type[Any]:
        return self.registry.get(self.entry.slot, self.entry.name)

    def small_model(self, host: HostModel) -> SmallModel:
        """Return the model of a spec, built once."""
        if host.label not in self._models:
            self._models[host.label] = SmallModel(host.spec, self.registry)
        return self._models[host.label]

    def rejects_options(self, host: HostModel) -> bool:
        """Return True if building the model raises a SpecError; other errors are faults."""
        try:
            self.small_model(host)
        except SpecError:
            return True
        except Exception:  # the check "models can be built" reports it
            return False
        return False

    def all_attentions_declare(self, host: HostModel, *traits: str) -> bool:
        """Return True if every attention of the model declares one of these traits."""
        attention_names = [name for slot, name in components_of(host.spec, self.registry.index) if slot == "attention"]
        declared = [self.registry.index.find("attention", name).traits for name in attention_names]
        return all(any(traits_of_one.get(trait, False) for trait in traits) for traits_of_one in declared)

    def resolved(self, base: str, changes: Mapping[str, Any]) -> dict[str, Any]:
        """Return the complete spec of a base with changes."""
        return resolved({**self.base_specs[base], **changes}, registry=self.registry)

    def component_overrides(self, base: str, node: Mapping[str, Any]) -> dict[str, Any]:
        """Return the changes that insert the component into a base.

        An attention is used only in the parts that its traits allow, next to a position that it supports. A topology
        drops the slots that it does not read.
        """
        overrides: dict[str, Any] = {self.entry.slot: node}
        if "teacher" in self.entry.traits.get("needs", []):
            overrides["teacher"] = {"sha256": "under test"}  # the check builds the teacher itself
        if self.entry.slot == "topology":
            overrides |= {slot: None for slot in ARCHITECTURE if slot not in self.entry.reads}
        if self.entry.slot == "objective":
            overrides |= self._corpus_overrides(base, overrides)
        if self.entry.slot == "tokenizer" and self.entry.traits.get("modality") == "ids":
            overrides |= self._corpus_of_ids()
        if self.entry.slot != "attention":
            return {**overrides, **self.partner}
        base_spec = self.resolved(base, {})
        if base_spec.get("position") is not None and self._has_unsupported_position(base_spec["position"]):
            overrides["position"] = {"name": NO_POSITION}
        parts = self.registry.index.entries["topology"][base_spec["topology"]["name"]].parts
        for part in parts if len(parts) > 1 else ():
            if not self.entry.traits.get(*(("causal", False) if part.causal else ("bidirectional", True))):
                overrides[f"parts.{part.name}.attention"] = base_spec["attention"]
            if part.cross:
                crosses = self.entry.traits.get("cross")
                overrides[f"parts.{part.name}.cross.attention"] = node if crosses else base_spec["attention"]
        return overrides

    def _corpus_overrides(self, base: str, overrides: Mapping[str, Any]) -> dict[str, Any]:
        """Return the first corpus with the fields that the objective needs, or no change if the base has them."""
        needed = IN_TEXT.intersection(self.entry.traits.get("needs", []))
        corpora = self.registry.index.entries["corpus"].values()
        suitable = [entry for entry in corpora if needed <= {*entry.traits.get("provides", [])}]
        for corpus_overrides in ({}, *({"corpus": example_node(entry)} for entry in suitable)) if needed else ():
            try:
                self.resolved(base, {**overrides, **corpus_overrides})
            except SpecError:
                continue  # the corpus does not fit: no such field, too many classes, or images
            return corpus_overrides
        return {}

    def _corpus_of_ids(self) -> dict[str, Any]:
        """Return the first corpus of token ids."""
        corpora = self.registry.index.entries["corpus"].values()
        return next(({"corpus": example_node(entry)} for entry in corpora if entry.traits.get("modality") == "ids"), {})

    def _has_unsupported_position(self, position: Any) -> bool:
        """Return True if a position has hooks that the attention under test does not call."""
        supported = {*self.entry.traits.get("position_hooks", []), "embed"}
        nodes = position if isinstance(position, list) else [position]
        entries = [self.registry.index.find("position", node["name"]) for node in nodes]
        return any(not {*entry.traits.get("hooks", [])} <= supported for entry in entries)


def base_specs(user_spec: Source | None, registry: Registry) -> dict[str, Mapping[str, Any]]:
    """Return the specs that a component is inserted into: the user's spec, or the tiny presets, made smaller."""
    if user_spec is not None:
        return {USER_SPEC: resolved(user_spec, registry=registry)}
    # The image size determines the sequence length.
    sizes = {key: size for key, size in SMALL_SIZES.items() if key != "dims.length"}
    specs: dict[str, Mapping[str, Any]] = {name: {"preset": name, **SMALL_SIZES} for name in PRESETS}
    return specs | {name: {"preset": name, **sizes} for name in FALLBACK_PRESETS if name in registry.index.presets}


def host_models(case: Case) -> Iterator[HostModel]:
    """Yield every valid model with the component."""
    node = component_node(case)
    overrides = {base: case.component_overrides(base, node) for base in case.base_specs}
    if case.entry.slot in _PARTNER_SLOTS and not any(
        _is_valid(case, base, changes) for base, changes in overrides.items()
    ):
        case.partner = _partner_overrides(case)
        overrides = {base: {**changes, **case.partner} for base, changes in overrides.items()}
    accepted, chosen = False, None
    for base, changes in overrides.items():
        if accepted and base in FALLBACK_PRESETS:
            break
        try:
            spec = case.resolved(base, changes)
        except SpecError as error:
            case.rejections.append(f"{base}: {error.problems[0].message}")
            continue
        accepted = True
        yield HostModel(base, spec)
        if chosen is None or (causal(case, spec) and not causal(case, chosen.spec)):
            chosen = HostModel(base, spec)
        for neighbour in _neighbour_entries(case, spec):
            beside = {neighbour.slot: example_node(neighbour)}
            try:
                spec = case.resolved(base, {**changes, **beside})
            except SpecError:
                continue  # the rules reject this combination
            yield HostModel(f"{base}, {neighbour.slot}={neighbour.name}", spec, is_preset=False, neighbour=beside)
    if chosen is not None:
        yield from _option_variants(case, chosen, overrides[chosen.label])


def causal(case: Case, spec: Mapping[str, Any]) -> bool:
    """Return True if the body is causal."""
    parts = case.registry.index.entries["topology"][spec["topology"]["name"]].parts
    return next(part.causal for part in parts if part.path == "body")


def _option_variants(case: Case, host: HostModel, changes: Mapping[str, Any]) -> Iterator[HostModel]:
    """Yield the model with other options of the component: each choice, and two values of each number."""
    node = component_node(case)
    for option in case.entry.options if case.entry.slot in (*ARCHITECTURE, "topology") else ():
        count = 0
        for value in alternative_values(option, host.spec) if option.kind.name not in ("group", "slot") else ():
            if count == MAX_NUMERIC_VALUES and option.kind.name not in ("choice", "bool"):
                break
            overrides = {**changes, **case.component_overrides(host.label, {**node, option.name: value})}
            try:
                variant = HostModel(
                    f"{host.label}, {option.name}={value}", case.resolved(host.label, overrides), is_preset=False
                )
            except SpecError:
                continue  # the value is not valid here
            if case.rejects_options(variant):
                continue
            if variant.spec != host.spec:
                count += 1
                yield variant


def _is_valid(case: Case, base: str, changes: Mapping[str, Any]) -> bool:
    try:
        case.resolved(base, changes)
    except SpecError:
        return False
    return True


def _partner_overrides(case: Case) -> dict[str, Any]:
    """Return the first objective that can train the topology, or the first topology that the objective can train."""
    slot = _PARTNER_SLOTS[case.entry.slot]
    for entry in case.registry.index.entries[slot].values():
        pair = (case.entry, entry) if slot == "topology" else (entry, case.entry)
        if not misfit(*pair) and not unasked(pair[1], pair[0].traits.get("needs", [])):
            return {slot: example_node(entry)}
    return {}


def component_node(case: Case) -> dict[str, Any]:
    """Return the component as a spec node: with the options of the user's spec if it has any, else an example."""
    node = case.base_specs.get(USER_SPEC, {}).get(case.entry.slot)
    return dict(node) if isinstance(node, Mapping) and node["name"] == case.entry.name else example_node(case.entry)


def example_node(entry: Entry) -> dict[str, Any]:
    """Return the component as a spec node, with an example value for each option without a default."""
    return {"name": entry.name, **{option.name: option.sample for option in entry.options if option.required}}


def _neighbour_entries(case: Case, spec: Mapping[str, Any]) -> Iterator[Entry]:
    """Yield the first built-in component of each kind that interacts with the component under test.

    Components with equal traits are one kind. Topologies with several stacks are skipped: they add no new combination.
    """
    index = case.registry.index
    slot_name = _NEIGHBOUR_SLOTS.get(case.entry.slot)
    if slot_name is None or len(index.entries["topology"][spec["topology"]["name"]].parts) > 1:
        return
    names = {name for slot, name in components_of(spec, index) if slot == slot_name}
    kinds = [index.entries[slot_name][name].traits for name in names]
    for entry in index.entries[slot_name].values():
        if entry.source.distribution == BUILTIN and entry.traits not in kinds:
            kinds.append(entry.traits)
            yield entry


def alternative_values(option: Option, spec: Mapping[str, Any]) -> list[Any]:
    """Return candidates for other values of an option; some may be invalid in a given spec."""
    kind, sample = option.kind, option.sample
    candidates: list[Any] = []
    if kind.name == "choice":
        candidates = list(kind.choices)
    elif kind.name == "bool":
        candidates = [True, False]
    elif kind.name == "int":
        candidates = [2 * sample, sample // 2, sample + 1] if isinstance(sample, int) else []
        candidates += [1, 2, 3, 4, *(2 * size for size in spec["dims"].values() if isinstance(size, int))]
    elif kind.name == "float":
        candidates = [sample / 2, sample * 2] if isinstance(sample, (int, float)) and sample else []
        candidates += [0.5, 0.1, 2.0]
    if kind.optional:
        candidates.append(None)
    return [value for index, value in enumerate(candidates) if value != sample and value not in candidates[:index]]
