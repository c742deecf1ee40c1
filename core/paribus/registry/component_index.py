"""What is known of components without importing them: plain data, and how it is looked up."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple, final

from paribus.errors import ParibusError, PluginError, Problem, SpecError, closest_match, join_names
from paribus.hookspecs import SLOTS
from paribus.registry.plugin_sources import Door
from paribus.schema import JSON, Option, from_json, to_json

NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}")
PLUGIN_CODES = frozenset({"plugin-failed", "plugin-missing", "claimed-twice"})  # not the spec, but a plugin is at fault


class Part(NamedTuple):
    """A stack of a topology, as `paribus.slots.topology.Part` has it, without torch."""

    name: str
    path: str
    causal: bool
    cross: str | None = None
    recurrent: bool = False


@final
@dataclass(frozen=True, kw_only=True)
class Entry:
    """One component: all that `list`, `explain` and `check` need of it."""

    slot: str
    name: str
    door: Door
    doc: str
    file: str
    options: tuple[Option, ...] = ()
    traits: Mapping[str, JSON] = dataclasses.field(default_factory=dict)
    parts: tuple[Part, ...] = ()  # of a topology
    reads: tuple[str, ...] = ()  # of a topology
    terms: tuple[str, ...] = ()  # of an objective: what its loss is the sum of

    @property
    def summary(self) -> str:
        """The first sentence of the docstring, which may stand on two lines."""
        return " ".join(self.doc.partition("\n\n")[0].split())

    @property
    def distribution(self) -> str:
        return self.door.source

    def option(self, name: str) -> Option | None:
        return next((option for option in self.options if option.name == name), None)


@final
@dataclass(frozen=True)
class Broken:
    """A plugin that could not be loaded, or one of its components that could not be registered."""

    door: Door
    what: str
    slot: str = ""  # of the component; empty where the whole plugin is broken
    name: str = ""

    def __str__(self) -> str:
        component = f", component {self.slot}.{self.name}," if self.slot else ""
        return f"plugin {self.door}{component} failed to load: {self.what}"

    def may_offer(self, slot: str, name: str) -> bool:
        """Whether the broken plugin might have been the one with this component: its source has the name in it."""
        if self.slot:
            return (self.slot, self.name) == (slot, name)
        word = re.compile(rf"(?<![\w-]){re.escape(name)}(?![\w-])|\b{re.escape(name.replace('-', '_'))}\b")
        files = [file for file in self.door.files() if file.is_file()]
        return not files or any(word.search(file.read_text(errors="replace")) for file in files)


@final
@dataclass(frozen=True)
class Piece:
    """What one plugin gives to the index."""

    door: Door
    entries: tuple[Entry, ...] = ()
    broken: tuple[Broken, ...] = ()
    presets: str = ""  # a folder of NAME.yaml
    studies: str = ""  # a folder of NAME/study.yaml
    hooks: tuple[str, ...] = ()

    def to_json(self) -> dict[str, JSON]:
        document = dataclasses.asdict(dataclasses.replace(self, entries=(), broken=()))
        document["broken"] = [[broken.what, broken.slot, broken.name] for broken in self.broken]
        document["entries"] = [
            {**dataclasses.asdict(dataclasses.replace(entry, options=())), "options": [*map(to_json, entry.options)]}
            for entry in self.entries
        ]
        return document

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Piece:
        door = Door(**document["door"])
        read = {
            "door": door,
            "entries": tuple(_entry(entry, door) for entry in document["entries"]),
            "broken": tuple(Broken(door, *broken) for broken in document["broken"]),
            "hooks": tuple(document["hooks"]),
        }
        return cls(**{**document, **read})


def _entry(document: Mapping[str, Any], door: Door) -> Entry:
    read = {
        "door": door,
        "options": tuple(from_json(option) for option in document["options"]),
        "parts": tuple(Part(*part) for part in document["parts"]),
        "reads": tuple(document["reads"]),
        "terms": tuple(document["terms"]),
    }
    return Entry(**{**document, **read})


@final
@dataclass(frozen=True)
class Index:
    """All components by slot and name. Two that claim one name are both withheld, whatever the order."""

    pieces: tuple[Piece, ...]

    @cached_property
    def claims(self) -> Mapping[tuple[str, str], tuple[Entry, ...]]:
        claims: dict[tuple[str, str], tuple[Entry, ...]] = {}
        for piece in sorted(self.pieces, key=lambda piece: piece.door):
            for entry in piece.entries:
                key = (entry.slot, entry.name)
                claims[key] = (*claims.get(key, ()), entry)
        return claims

    @cached_property
    def entries(self) -> Mapping[str, Mapping[str, Entry]]:
        found: dict[str, dict[str, Entry]] = {slot: {} for slot in SLOTS}
        for (slot, name), claimants in sorted(self.claims.items()):
            if len(claimants) == 1:
                found[slot][name] = claimants[0]
        return found

    @cached_property
    def broken(self) -> tuple[Broken, ...]:
        return tuple(broken for piece in self.pieces for broken in piece.broken)

    def warnings(self) -> list[str]:
        """What is wrong with plugins, a line each: errors only for whoever needs them."""
        twice = [_twice(f"{slot}.{name}", claimants) for (slot, name), claimants in self.claims.items()]
        files = [
            _twice(f"the {kind} {name}", claimants)
            for kind in ("preset", "study")
            for name, claimants in self.files(kind).items()
        ]
        return [*map(str, self.broken), *filter(None, twice), *filter(None, files)]

    def names(self, slot: str) -> tuple[str, ...]:
        return tuple(self.entries[slot])

    def find(self, slot: str, name: str) -> Entry:
        """The component, or an error that says what there is, what is near, and which broken plugin may have it."""
        problem = self.problem(slot, name)
        if problem is not None:
            raise failure([problem])
        return self.entries[slot][name]

    def problem(self, slot: str, name: str, *, path: str = "", where: str = "") -> Problem | None:
        """What is wrong with asking for this component, if anything is."""
        path = path or slot
        if slot not in self.entries:
            what = f'unknown slot "{slot}"'
            near = closest_match(slot, SLOTS)
            return Problem(
                code="unknown-slot", path=path, location=where, message=what, valid=join_names(SLOTS), suggestion=near
            )
        claimants = self.claims.get((slot, name), ())
        if len(claimants) == 1:
            return None
        if claimants:
            what = _twice(f"{slot}.{name}", claimants)
            return Problem(code="claimed-twice", path=path, location=where, message=what)
        what = f'unknown {slot} "{name}"'
        guilty = [broken for broken in self.broken if broken.may_offer(slot, name)]
        if guilty:
            what = "; ".join([what, *map(str, guilty)])
        return Problem(
            code="plugin-failed" if guilty else "unknown-component",
            path=path,
            location=where,
            message=what,
            valid=self._valid(slot),
            suggestion=closest_match(name, self.entries[slot]),
        )

    def _valid(self, slot: str) -> str:
        by_door: dict[str, list[str]] = {}
        for name, entry in self.entries[slot].items():
            by_door.setdefault(str(entry.door), []).append(name)
        return ", ".join(f"{join_names(names)} ({door})" for door, names in by_door.items()) or "none is installed"

    @property
    def presets(self) -> Mapping[str, Path]:
        return {name: claimants[0][1] for name, claimants in self.files("preset").items() if len(claimants) == 1}

    @property
    def studies(self) -> Mapping[str, Path]:
        return {name: claimants[0][1] for name, claimants in self.files("study").items() if len(claimants) == 1}

    def preset(self, name: str) -> Path:
        """The file of a preset."""
        return self._file("preset", name)

    def study(self, name: str) -> Path:
        """The file of a study that a plugin ships."""
        return self._file("study", name)

    def _file(self, kind: str, name: str) -> Path:
        claims = self.files(kind)
        claimants = claims.get(name, [])
        if len(claimants) == 1:
            return claimants[0][1]
        if claimants:
            raise failure([Problem(code="claimed-twice", message=_twice(f"the {kind} {name}", claimants))])
        valid = f"{join_names(claims) or 'none is installed'}, or a path that ends in .yaml"
        what = f'unknown {kind} "{name}"'
        raise SpecError(
            Problem(code=f"unknown-{kind}", message=what, valid=valid, suggestion=closest_match(name, claims))
        )

    def files(self, kind: str) -> dict[str, list[tuple[Door, Path]]]:
        """All presets or studies, and who claims each. Read anew: a folder may change without any code changing."""
        found: dict[str, list[tuple[Door, Path]]] = {}
        for piece in self.pieces:
            folder = piece.presets if kind == "preset" else piece.studies
            for file in sorted(Path(folder).glob("*.yaml" if kind == "preset" else "*/study.yaml")) if folder else ():
                name = file.stem if kind == "preset" else file.parent.name
                if NAME.fullmatch(name):
                    found.setdefault(name, []).append((piece.door, file))
        return dict(sorted(found.items()))


def _twice(what: str, claimants: Iterable[Entry | tuple[Door, Path]]) -> str:
    """Who claims one name, or nothing where it is one claimant alone."""
    doors = [claimant.door if isinstance(claimant, Entry) else claimant[0] for claimant in claimants]
    if len(doors) == 1:
        return ""
    names = " and ".join(f"plugin {door}" for door in sorted(doors))
    return f"{what} is claimed by {names}; uninstall one, or ask its author for another name"


def failure(problems: Iterable[Problem]) -> ParibusError:
    """All problems as one error: the plugin's fault where one is to blame, else the spec's."""
    found = tuple(problems)
    kind = PluginError if any(problem.code in PLUGIN_CODES for problem in found) else SpecError
    return kind(*found)
