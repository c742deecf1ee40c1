"""Identity of a trial: the hash of its spec, of the code that it runs, and of its data.

A trial whose component changed has another identity. Its old record is stale, and is not compared with new ones.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final, final

from paribus.errors import Problem, join_names
from paribus.registry import ComponentValues, Entry, Index
from paribus.registry.index_cache import indexed_values, mark_outdated
from paribus.specs.components import components_in_slot, filled_slots
from paribus.specs.diff import WITHOUT_EFFECT
from paribus.specs.named_plugins import plugins_of
from paribus.specs.program_spec import is_program
from paribus.storage.atomic import canonical_json, digest, digest_json
from paribus.storage.code_hash import CodeHashes, dependencies
from paribus.storage.engine import numbers_of_engine

LENGTH: Final = 24  # hexadecimal digits of an identity: 96 bits
PART: Final = 32  # characters of each hash of a component
REASONS: Final = 3  # that a message names
HINT: Final = (
    "run the study again if you changed it; a value that differs in every process, as of an environment variable, "
    "belongs in an option"
)
UNIDENTIFIED: Final = "unidentified-"  # begins the hash of what has no file, and a value without a digest

Spec = Mapping[str, Any]


def identity_of(spec: Spec, code: str, corpus: str) -> str:
    """Return the identity of a trial, which is the name of its folder."""
    return CanonicalCache().identity(spec, code, corpus)


@final
class CanonicalCache:
    """Canonical JSON of specs that share values: an object that several specs hold is serialised once."""

    def __init__(self) -> None:
        self._cache: dict[tuple[str, int], tuple[Any, str]] = {}

    def identity(self, spec: Spec, code: str, corpus: str) -> str:
        """Return the same as `identity_of`."""
        text = f'{{{self.pair("code", code)},{self.pair("corpus", corpus)},"spec":{self.spec(spec)}}}'
        return digest(text.encode())[:LENGTH]

    def spec(self, spec: Spec) -> str:
        """Return a resolved spec without the options that have no effect on a trial."""
        return "{" + ",".join(self.pairs(spec)) + "}"

    def pairs(self, spec: Spec) -> list[str]:
        """Return each key with its value, sorted by key."""
        return [self.pair(key, spec[key], all_count=is_program(spec)) for key in sorted(spec)]

    def pair(self, key: str, value: Any, *, all_count: bool = False) -> str:
        """Return a key with its value, without the options that have no effect, unless `all_count`."""
        cached = self._cache.get((key, id(value)))
        return self._serialise(key, value, all_count) if cached is None else cached[1]

    def _serialise(self, key: str, value: Any, all_count: bool) -> str:
        effective = value
        if isinstance(value, Mapping) and not all_count:
            effective = {name: option for name, option in value.items() if (key, name) not in WITHOUT_EFFECT}
        text = f"{canonical_json(key).decode()}:{canonical_json(effective).decode()}"
        self._cache[key, id(value)] = value, text  # with the value, so that its id is not given to another object
        return text


@final
class SeededIdentity:
    """Identities of one spec with different seeds: everything else is serialised once."""

    def __init__(self, cache: CanonicalCache, spec: Spec, code: str, corpus: str) -> None:
        self._cache = cache
        self._index_by_key = {key: index for index, key in enumerate(sorted(spec))}
        self._pairs = cache.pairs(spec)
        self._prefix = f'{{{cache.pair("code", code)},{cache.pair("corpus", corpus)},"spec":{{'

    def identity(self, **overrides: Any) -> str:
        """Return the identity of the spec with some of its values replaced; it must have these keys."""
        pairs = self._pairs.copy()
        for key, value in overrides.items():
            pairs[self._index_by_key[key]] = self._cache.pair(key, value)
        return digest(f"{self._prefix}{','.join(pairs)}}}}}".encode())[:LENGTH]


@final
class ComponentCode:
    """Hashes of the code behind the specs of one plan: each file is read once."""

    def __init__(self, index: Index) -> None:
        self._index = index
        self._files = index.hashes()
        self._by_components: dict[frozenset[tuple[str, str]], tuple[str, Mapping[str, str]]] = {}
        self._plugins: dict[frozenset[tuple[str, str]], Mapping[str, Mapping[str, str]]] = {}
        self._hashes: dict[tuple[str, str], str] = {}
        self._components: dict[tuple[str, int], tuple[Any, frozenset[tuple[str, str]]]] = {}

    def hash(self, spec: Spec) -> str:
        """Return one hash of the engine and of all components of a spec."""
        return self._of_spec(spec)[0]

    def components(self, spec: Spec) -> Mapping[str, str]:
        """Return a hash of each component of a spec, by slot.name."""
        return self._of_spec(spec)[1]

    def plugins(self, spec: Spec) -> Mapping[str, Mapping[str, str]]:
        """Return the plugin of each component of a spec, by slot.name, that does not come with Paribus."""
        components = self._components_of(spec)
        if components not in self._plugins:
            self._plugins[components] = plugins_of(components, self._index, self._files)
        return self._plugins[components]

    def _components_of(self, spec: Spec) -> frozenset[tuple[str, str]]:
        return frozenset[tuple[str, str]]().union(*(self._in_slot(*filled) for filled in filled_slots(spec)))

    def _of_spec(self, spec: Spec) -> tuple[str, Mapping[str, str]]:
        components = self._components_of(spec)
        if components not in self._by_components:
            hashes = {f"{slot}.{name}": self.component(slot, name) for slot, name in sorted(components)}
            self._files.save()
            self._by_components[components] = code_of(hashes), hashes
        return self._by_components[components]

    def component(self, slot: str, name: str) -> str:
        """Return the hashes of a component's source code and of the values that this depends on."""
        if (slot, name) not in self._hashes:
            values = self._index.values(slot, name, self._files)
            self._index.planned[slot, name] = values
            self._hashes[slot, name] = component_hash(self._index.find(slot, name), values, self._files)
        return self._hashes[slot, name]

    def _in_slot(self, slot: str, value: Any) -> frozenset[tuple[str, str]]:
        if (slot, id(value)) not in self._components:  # kept with the value, so that its id stays its own
            self._components[slot, id(value)] = value, frozenset(components_in_slot(slot, value, self._index))
        return self._components[slot, id(value)][1]


def code_of(components: Mapping[str, str]) -> str:
    """Return one hash of the engine and of components, from their hashes."""
    code = digest_json([numbers_of_engine(), *sorted(components.values())])
    return f"{UNIDENTIFIED}{code}" if any(UNIDENTIFIED in value for value in components.values()) else code


def component_hash(entry: Entry, values: ComponentValues, hashes: CodeHashes) -> str:
    """Return the hash of a component's source code, and that of the values that this depends on."""
    files = [Path(file) for file in (entry.file, *values.files) if file]
    source = source_hash(files, hashes, external=not entry.source.is_builtin, versions=values.versions)
    is_unidentified = not (entry.file or values.is_complete)
    return f"{source[:PART]}-{f'{UNIDENTIFIED}{entry.class_id}' if is_unidentified else values.digest}"


def source_hash(
    files: Iterable[Path], hashes: CodeHashes, *, external: bool = True, versions: Iterable[str] = ()
) -> str:
    """Return the hash of source files, of what these import, and of the versions of large packages."""
    code = dependencies(files, hashes, external=external)
    return digest_json([sorted(map(hashes.hash, code.files)), sorted({*code.versions, *versions})])


def unidentified(components: Iterable[str], index: Index) -> Iterator[str]:
    """Yield a warning for each component, as slot.name, whose hash does not cover all that its output depends on."""
    for component in sorted(set(components)):
        slot, _, name = component.partition(".")
        values = index.planned.get((slot, name)) or index.values(slot, name)
        if values.reasons:
            yield (
                f"a change of what {component} computes may keep its old records: {join_names(values.reasons, REASONS)}"
            )


def component_problems(planned: Mapping[str, str], index: Index) -> Iterator[Problem]:
    """Yield a problem for each component, as slot.name, that is not the one of the plan in this process."""
    hashes = index.hashes()
    for component, expected in planned.items():
        slot, _, name = component.partition(".")
        entry, values = index.find(slot, name), index.values(slot, name, hashes)
        actual = component_hash(entry, values, hashes)
        if actual != expected:
            yield _difference(component, actual, expected, entry, values, index)
            if not entry.source.is_builtin:
                mark_outdated(entry.source)
    hashes.save()


def _difference(
    component: str, actual: str, expected: str, entry: Entry, values: ComponentValues, index: Index
) -> Problem:
    """Return the problem of a component that differs from the planned one, with the names of its changed values."""
    if actual[:PART] != expected[:PART]:
        message, hint = "its source code was edited after the study was planned", "plan and run the study again"
        return Problem(code="component-differs", path=component, message=message, hint=hint)
    planned = index.planned.get((entry.slot, entry.name)) or indexed_values(entry.source, expected[PART + 1 :])
    names = _changed_parts(planned.parts, values.parts) if planned is not None else []
    subject = f"the value of {join_names(names, REASONS)}" if names else "a value or function that it depends on"
    message = f"{subject} is not what it was when the study was planned"
    return Problem(code="component-differs", path=component, message=message, hint=HINT)


def _changed_parts(before: Mapping[str, str], after: Mapping[str, str]) -> list[str]:
    """Return the names of values that are not the same; without the objects that hold another one of them."""
    names = [f"`{name}`" for name in sorted({*before, *after}) if before.get(name) != after.get(name)]
    return [name for name in names if not any(other.startswith((f"{name[:-1]}.", f"{name[:-1]}[")) for other in names)]
