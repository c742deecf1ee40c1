"""Which trial a trial is: the hash of its spec, of the code of its components, and of its data.

Change a plugin's file and its old records belong to another trial: they are stale, and are not compared in silence.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any, final

import paribus
from paribus.hookspecs import SLOTS
from paribus.planning.source_imports import closure
from paribus.registry import Index
from paribus.specs.diff import WITHOUT_EFFECT
from paribus.storage.atomic import canonical, digest, digest_json

ENGINE = ("slots", "parts", "kernels", "assembly", "train")
LENGTH = 24  # hexadecimal digits of an identity: 96 bits

Spec = Mapping[str, Any]


def identity_of(spec: Spec, code: str, corpus: str) -> str:
    """The name of a trial's folder."""
    return Spelling().identity(spec, code, corpus)


@final
class Spelling:
    """The canonical spelling of specs that share values with each other: what is one object is spelt once."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, int], tuple[Any, str]] = {}

    def identity(self, spec: Spec, code: str, corpus: str) -> str:
        """As `identity_of` has it."""
        spelt = f'{{{self.of("code", code)},{self.of("corpus", corpus)},"spec":{self.spec(spec)}}}'
        return digest(spelt.encode())[:LENGTH]

    def spec(self, spec: Spec) -> str:
        """A resolved spec, without what has no effect on a trial."""
        return "{" + ",".join(self.items(spec)) + "}"

    def items(self, spec: Spec) -> list[str]:
        """Its keys in order, each with its value."""
        return [self.of(key, spec[key]) for key in sorted(spec)]

    def of(self, key: str, value: Any) -> str:
        """A key with its value, without what of that has no effect."""
        known = self._known.get((key, id(value)))
        return self._spell(key, value) if known is None else known[1]

    def _spell(self, key: str, value: Any) -> str:
        """A key with its value; the value is kept beside the spelling, so that no other can come to have its id."""
        plain = value
        if isinstance(value, Mapping):
            plain = {own: item for own, item in value.items() if (key, own) not in WITHOUT_EFFECT}
        spelt = f"{_spelt(key)}:{_spelt(plain)}"
        self._known[key, id(value)] = value, spelt
        return spelt


@final
class Sown:
    """The identities of one spec with one seed after another: all that they share is spelt once."""

    def __init__(self, spelling: Spelling, spec: Spec, code: str, corpus: str) -> None:
        self._spelling = spelling
        self._places = {key: place for place, key in enumerate(sorted(spec))}
        self._items = spelling.items(spec)
        self._before = f'{{{spelling.of("code", code)},{spelling.of("corpus", corpus)},"spec":{{'

    def identity(self, **values: Any) -> str:
        """Of the spec with these values in place of its own; it has all of the keys."""
        items = self._items.copy()
        for key, value in values.items():
            items[self._places[key]] = self._spelling.of(key, value)
        return digest(f"{self._before}{','.join(items)}}}}}".encode())[:LENGTH]


def _spelt(value: Any) -> str:
    return canonical(value).decode()


def components_of(spec: Spec, index: Index) -> Iterator[tuple[str, str]]:
    """Every (slot, name) that a resolved spec names, its parts' and nested ones included."""
    for slot, value in _filled(spec):
        yield from _named(slot, value, index)


def _filled(spec: Spec) -> Iterator[tuple[str, Any]]:
    """Each slot that a spec fills, with what fills it: in its parts as well."""
    yield from ((slot, spec[slot]) for slot in SLOTS if spec.get(slot) is not None)
    if spec.get("evaluate") is not None:
        yield "objective", spec["evaluate"]
    for part in (spec.get("parts") or {}).values():
        yield from _filled(part)
        yield from _filled(part.get("cross") or {})


def _named(slot: str, value: Any, index: Index) -> Iterator[tuple[str, str]]:
    for node in value if isinstance(value, (list, tuple)) else [value]:
        yield from _within(slot, node, index)


def _within(slot: str, node: Mapping[str, Any], index: Index) -> Iterator[tuple[str, str]]:
    """A component, and those that its options name."""
    yield slot, node["name"]
    for option in index.find(slot, node["name"]).options:
        if option.kind.name == "slot" and node.get(option.name) is not None:
            yield from _within(option.kind.slot, node[option.name], index)


def code_of(files: Iterable[Path], hashed: Callable[[Path], str] | None = None) -> str:
    """One hash of the components' files, of what these import of their own package, and of the engine."""
    parts = sorted(map(hashed or file_hash, {each for file in files for each in closure(file)}))
    return digest_json([engine_hash(), *parts])


@final
class Code:
    """The code behind the specs of one plan: what the same components are made of is read once."""

    def __init__(self, index: Index) -> None:
        self._index = index
        self._known: dict[frozenset[tuple[str, str]], str] = {}
        self._named: dict[tuple[str, int], tuple[Any, frozenset[tuple[str, str]]]] = {}
        self._hashed = lru_cache(maxsize=None)(file_hash)

    def behind(self, spec: Spec) -> str:
        """One hash of the code of all components that a spec names."""
        named = frozenset[tuple[str, str]]().union(*(self._of(slot, value) for slot, value in _filled(spec)))
        if named not in self._known:
            files = [self._index.find(slot, name).file for slot, name in named]
            self._known[named] = code_of((Path(file) for file in files), self._hashed) if all(files) else unidentified()
        return self._known[named]

    def _of(self, slot: str, value: Any) -> frozenset[tuple[str, str]]:
        """The components of what fills a slot, beside which it is kept, so that no other can come to have its id."""
        if (slot, id(value)) not in self._named:
            self._named[slot, id(value)] = value, frozenset(_named(slot, value, self._index))
        return self._named[slot, id(value)][1]


@lru_cache(maxsize=1)
def unidentified() -> str:
    """The code of a class without a file (a notebook's): it runs, but no other process will take it for the same."""
    return f"unidentified-{secrets.token_hex(16)}"


@lru_cache(maxsize=1)
def engine_hash() -> str:
    """One hash of all that every trial runs through."""
    root = _engine()
    files = sorted(path for folder in ENGINE for path in (root / folder).rglob("*.py"))
    return digest_json([[str(path.relative_to(root)), file_hash(path)] for path in files])


def _engine() -> Path:
    return Path(paribus.__file__).parent


def file_hash(path: Path) -> str:
    """sha256 of a source file; line endings do not count, since git may change them."""
    return hashlib.sha256(path.read_bytes().replace(b"\r\n", b"\n")).hexdigest()
