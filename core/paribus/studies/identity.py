"""Which trial a trial is: the hash of its spec, of the code of its components, and of its data.

Change a plugin's file and its old records belong to another trial: they are stale, and are not compared in silence.
"""

from __future__ import annotations

import ast
import hashlib
import secrets
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any, final

import paribus
from paribus.durable import canonical, digest, digest_json
from paribus.hookspecs import SLOTS
from paribus.registry import Index

ENGINE = ("slots", "parts", "kernels", "assembly", "train")
WITHOUT_EFFECT = (("data", "workers"), ("from", "name"), ("from", "learned"), ("teacher", "name"))
"""What may change in a trial's spec: of what a kept vocabulary was learned, the model that has it answers for."""
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
        spelt = f'{{{self._of("code", code)},{self._of("corpus", corpus)},"spec":{self.spec(spec)}}}'
        return digest(spelt.encode())[:LENGTH]

    def spec(self, spec: Spec) -> str:
        """A resolved spec, without what has no effect on a trial."""
        return "{" + ",".join([self._of(key, spec[key]) for key in sorted(spec)]) + "}"

    def _of(self, key: str, value: Any) -> str:
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


def _spelt(value: Any) -> str:
    return canonical(value).decode()


def components_of(spec: Spec, index: Index) -> Iterator[tuple[str, str]]:
    """Every (slot, name) that a resolved spec names, its parts' and nested ones included."""
    for slot in SLOTS:
        for node in _nodes(spec.get(slot)):
            yield from _within(slot, node, index)
    for node in _nodes(spec.get("evaluate")):
        yield from _within("objective", node, index)
    for part in (spec.get("parts") or {}).values():
        yield from components_of(part, index)
        yield from components_of(part.get("cross") or {}, index)


def _within(slot: str, node: Mapping[str, Any], index: Index) -> Iterator[tuple[str, str]]:
    """A component, and those that its options name."""
    yield slot, node["name"]
    for option in index.find(slot, node["name"]).options:
        if option.kind.name == "slot" and node.get(option.name) is not None:
            yield from _within(option.kind.slot, node[option.name], index)


def _nodes(value: Any) -> list[Mapping[str, Any]]:
    if value is None:
        return []
    return list(value) if isinstance(value, (list, tuple)) else [value]


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
        self._hashed = lru_cache(maxsize=None)(file_hash)

    def behind(self, spec: Spec) -> str:
        """One hash of the code of all components that a spec names."""
        named = frozenset(components_of(spec, self._index))
        if named not in self._known:
            files = [self._index.find(slot, name).file for slot, name in named]
            self._known[named] = code_of((Path(file) for file in files), self._hashed) if all(files) else unidentified()
        return self._known[named]


@lru_cache(maxsize=1)
def unidentified() -> str:
    """The code of a class without a file (a notebook's): it runs, but no other process will take it for the same."""
    return f"unidentified-{secrets.token_hex(16)}"


@lru_cache(maxsize=1)
def engine_hash() -> str:
    """One hash of all that every trial runs through."""
    root = Path(paribus.__file__).parent
    files = sorted(path for folder in ENGINE for path in (root / folder).rglob("*.py"))
    return digest_json([[str(path.relative_to(root)), file_hash(path)] for path in files])


def file_hash(path: Path) -> str:
    """sha256 of a source file; line endings do not count, since git may change them."""
    return hashlib.sha256(path.read_bytes().replace(b"\r\n", b"\n")).hexdigest()


@lru_cache(maxsize=1024)
def closure(file: Path) -> frozenset[Path]:
    """`file` and, transitively, the files of its own top-level package that it imports."""
    root = _source_root(file)
    found: set[Path] = set()
    left = [file.resolve()]
    while left:
        path = left.pop()
        if path in found:
            continue
        found.add(path)
        left.extend(_imported(path, root))
    return frozenset(found)


def _source_root(file: Path) -> Path:
    """The folder that holds the top-level package."""
    folder = file.resolve().parent
    while (folder / "__init__.py").exists():
        folder = folder.parent
    return folder


def _imported(path: Path, root: Path) -> Iterator[Path]:
    package = path.relative_to(root).parts[:-1]
    source = path.read_bytes()
    if not package or (package[0].encode() not in source and b"from ." not in source):
        return  # it imports nothing of its own package, and parsing would be most of the time
    for node in ast.walk(ast.parse(source)):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = (
                ".".join([*package[: len(package) - node.level + 1], node.module or ""]) if node.level else node.module
            )
            names = [str(base).strip("."), *(f"{base}.{alias.name}".strip(".") for alias in node.names)]
        for name in names:
            if package and name.partition(".")[0] == package[0]:
                yield from _files_of(name, root, package[0])


def _files_of(module: str, root: Path, package: str) -> Iterator[Path]:
    place = root.joinpath(*module.split("."))
    if place.with_suffix(".py").is_file():
        yield place.with_suffix(".py")
    elif (place / "__init__.py").is_file() and module != package:
        # A package's own __init__ lists all of its variants: adding one must not make the others stale.
        yield place / "__init__.py"
