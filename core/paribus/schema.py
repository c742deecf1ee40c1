"""Schema of options, as plain data that converts to JSON and back: of a component, and of the keys of a study.

`registry.class_reader` reads it from annotations, which have a type, a one-line description and limits:

    kv_heads: Annotated[int, "key/value heads", Range(1), Divides("heads")] = 2
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

KindName = Literal["int", "float", "bool", "str", "choice", "list", "group", "slot", "mapping", "any"]
JSON = Any


@dataclass(frozen=True)
class Range:
    """Limits of a number: `low` and `high` are inclusive, `above` and `below` exclusive."""

    low: float | None = None  # inclusive minimum
    high: float | None = None  # inclusive maximum
    above: float | None = None  # exclusive minimum
    below: float | None = None  # exclusive maximum

    def contains(self, value: float) -> bool:
        """Return True if a value is within the limits."""
        return (
            (self.low is None or value >= self.low)
            and (self.high is None or value <= self.high)
            and (self.above is None or value > self.above)
            and (self.below is None or value < self.below)
        )

    def __str__(self) -> str:
        bounds = (("≥", self.low), ("≤", self.high), (">", self.above), ("<", self.below))
        return " and ".join(f"{sign} {limit:g}" for sign, limit in bounds if limit is not None)


@dataclass(frozen=True)
class Divides:
    """The value divides one of the dims."""

    dim: str


@dataclass(frozen=True)
class AtLeast:
    """The value is at least one of the dims."""

    dim: str


@dataclass(frozen=True)
class AtMost:
    """The value is at most one of the dims; error messages add `reason`."""

    dim: str
    reason: str = ""


@dataclass(frozen=True)
class Pattern:
    """The value is a text that matches a regular expression; `form` describes it."""

    regex: str
    form: str

    def __str__(self) -> str:
        return self.form


@dataclass(frozen=True)
class Names:
    """The value is one of these names of a `noun`."""

    noun: str
    names: Sequence[str]

    def __str__(self) -> str:
        return ", ".join(self.names)


@dataclass(frozen=True)
class Example:
    """A value for tests, benchmarks and messages, of an option whose default does not show what it takes."""

    value: Any


@dataclass(frozen=True)
class Slot:
    """The option is a component of a slot, injected as a factory."""

    name: str


Limit = Range | Divides | AtLeast | AtMost | Pattern | Names
LIMITS: Mapping[str, type[Limit]] = {
    limit.__name__: limit for limit in (Range, Divides, AtLeast, AtMost, Pattern, Names)
}


@dataclass(frozen=True)
class Kind:
    """Type of an option."""

    name: KindName
    optional: bool = False  # null is a value
    choices: tuple[str, ...] = ()
    items: tuple[Kind, ...] = ()  # of a list: the kind of all items, or one kind for each position
    options: tuple[Option, ...] = ()  # of a group
    slot: str = ""

    def __str__(self) -> str:
        names = {
            "int": "a whole number",
            "float": "a number",
            "bool": "true or false",
            "str": "text",
            "group": "a mapping",
            "mapping": "a mapping",
            "any": "a value",
        }
        if self.name == "choice":
            text = "one of " + ", ".join(self.choices)
        elif self.name == "list":
            text = f"a list of {len(self.items)}" if len(self.items) > 1 else f"a list, each item {self.items[0]}"
            text = "a list of mappings" if self.items[0].name in ("group", "mapping") else text
        elif self.name == "slot":
            text = f"a component of the slot {self.slot}"
        else:
            text = names[self.name]
        return f"{text}, or null" if self.optional else text


@dataclass(frozen=True)
class Option:
    """One option of a component, or one field of a group."""

    name: str
    kind: Kind
    doc: str
    limits: tuple[Limit, ...] = ()
    default: JSON = None
    required: bool = False
    example: JSON = None

    @property
    def sample(self) -> JSON:
        """A valid value: the default, or the example of an option without a default."""
        return self.example if self.required else self.default

    @property
    def example_text(self) -> str:
        """The example as YAML: `vary: {attention: [mqa, gqa]}`."""
        return f"{self.name}: {json.dumps(self.example, ensure_ascii=False)}".replace('"', "")


def to_json(option: Option) -> dict[str, JSON]:
    """Return an option as JSON, for the index."""
    document = dataclasses.asdict(dataclasses.replace(option, kind=Kind("int"), limits=()))
    document["kind"] = _kind_to_json(option.kind)
    document["limits"] = [{"is": type(limit).__name__, **dataclasses.asdict(limit)} for limit in option.limits]
    return document


def from_json(document: Mapping[str, JSON]) -> Option:
    """Return the option that `to_json` wrote."""
    limits = tuple(
        LIMITS[limit["is"]](**{key: value for key, value in limit.items() if key != "is"})
        for limit in document["limits"]
    )
    return Option(**{**document, "kind": _kind_from_json(document["kind"]), "limits": limits})


def _kind_to_json(kind: Kind) -> dict[str, JSON]:
    return {
        "name": kind.name,
        "optional": kind.optional,
        "choices": list(kind.choices),
        "items": [_kind_to_json(item) for item in kind.items],
        "options": [to_json(option) for option in kind.options],
        "slot": kind.slot,
    }


def _kind_from_json(document: Mapping[str, JSON]) -> Kind:
    return Kind(
        document["name"],
        document["optional"],
        tuple(document["choices"]),
        tuple(_kind_from_json(item) for item in document["items"]),
        tuple(from_json(option) for option in document["options"]),
        document["slot"],
    )
