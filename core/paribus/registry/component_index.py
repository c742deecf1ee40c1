"""The component index: the metadata of all components as plain data, looked up without importing any."""

from __future__ import annotations

import dataclasses
import importlib.metadata
import importlib.util
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple, final

from paribus.errors import ParibusError, PluginError, Problem, SpecError, closest_match, join_names
from paribus.hookspecs import SLOTS
from paribus.random_keys import key32
from paribus.registry.loaded_sources import LoadedSource, loaded_sources
from paribus.registry.suggestions import file_hint, suggest_name
from paribus.schema import JSON, Option, from_json, to_json
from paribus.storage.code_hash import CodeHashes

BUILTIN = "paribus"  # the distribution of the built-in plugins
NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}")
PLUGIN_CODES = frozenset({"plugin-failed", "plugin-missing", "duplicate-name"})  # problems that a plugin causes


@final
@dataclass(frozen=True, order=True)
class PluginSource:
    """Location of one plugin that is not imported yet."""

    distribution: str  # "" for a file, and for components added in Python
    name: str  # name of the entry point; for a file, its path as the user wrote it
    value: str = ""  # of an entry point, "package.module"; of a file, its absolute path
    version: str = ""
    needs: str = ""  # the distribution's requirement on paribus, if it has one

    def __str__(self) -> str:
        return f"{self.name} of {self.distribution} {self.version}" if self.distribution else self.name

    @property
    def is_builtin(self) -> bool:
        """True for the plugins of this distribution."""
        return self.distribution == BUILTIN

    @property
    def label(self) -> str:
        """Short text for lists: the distribution and its version, or the file."""
        return f"{self.distribution} {self.version}" if self.distribution else self.name

    @property
    def module(self) -> str:
        """Name under which the module is imported; for a file, a name that no other module has."""
        if self.distribution:
            return self.value.partition(":")[0]
        stem = re.sub(r"\W", "_", Path(self.value).stem)
        status = Path(self.value).stat()
        return f"paribus_file_{stem}_{key32(self.value, status.st_mtime_ns, status.st_size):08x}"

    def files(self) -> list[Path]:
        """Return every .py file that can change what the plugin registers."""
        if not self.distribution:
            return [Path(self.value)]
        try:
            module_spec = importlib.util.find_spec(self.module.partition(".")[0])
        except (ImportError, ValueError):
            return []
        if module_spec is None:
            return []
        folders = module_spec.submodule_search_locations
        if folders is None:
            return [Path(module_spec.origin)] if module_spec.origin else []
        return sorted(file for folder in folders for file in Path(folder).rglob("*.py"))


class Part(NamedTuple):
    """A stack of a topology, as `paribus.slots.topology.Part` describes it, without torch."""

    name: str
    path: str
    causal: bool
    cross: str | None = None
    recurrent: bool = False
    opposite: bool = False


@final
@dataclass(frozen=True, kw_only=True)
class ComponentValues:
    """Values that the code of a component depends on, and where this code comes from."""

    digest: str = ""
    files: tuple[str, ...] = ()  # of classes and functions that the component reaches, its own included
    versions: tuple[str, ...] = ()  # of large packages: "scipy 1.13"
    reasons: tuple[str, ...] = ()  # why a part of what the component computes cannot be identified
    is_complete: bool = True  # whether all values have a digest
    parts: Mapping[str, str] = dataclasses.field(default_factory=dict)  # a digest of each value, by its name


@final
@dataclass(frozen=True, kw_only=True)
class Entry:
    """Metadata of one component: everything that `list`, `explain` and `check` need."""

    slot: str
    name: str
    source: PluginSource
    doc: str
    file: str  # "" for a class without one, as in a notebook
    options: tuple[Option, ...] = ()
    traits: Mapping[str, JSON] = dataclasses.field(default_factory=dict)
    parts: tuple[Part, ...] = ()  # of a topology
    reads: tuple[str, ...] = ()  # of a topology
    terms: tuple[str, ...] = ()  # of an objective: the summands of its loss
    class_id: str = ""  # of a class without a file: differs from that of any other class, in any process
    values: ComponentValues = dataclasses.field(default=ComponentValues(), compare=False)  # of an index on disk

    @property
    def summary(self) -> str:
        """First sentence of the docstring, which may span two lines."""
        return " ".join(self.doc.partition("\n\n")[0].split())

    def option(self, name: str) -> Option | None:
        """Return the option of this name, or None."""
        return next((option for option in self.options if option.name == name), None)


@final
@dataclass(frozen=True)
class LoadFailure:
    """A plugin that failed to load, or one of its components that could not be registered."""

    source: PluginSource
    message: str
    slot: str = ""  # of the component; empty if the whole plugin failed
    name: str = ""

    def __str__(self) -> str:
        component = f", component {self.slot}.{self.name}," if self.slot else ""
        return f"plugin {self.source}{component} failed to load: {self.message}"

    def may_contain(self, slot: str, name: str) -> bool:
        """Return whether the failed plugin may define this component, because its source contains the name."""
        if self.slot:
            return (self.slot, self.name) == (slot, name)
        word = re.compile(rf"(?<![\w-]){re.escape(name)}(?![\w-])|\b{re.escape(name.replace('-', '_'))}\b")
        files = [file for file in self.source.files() if file.is_file()]
        return not files or any(word.search(file.read_text(encoding="utf-8", errors="replace")) for file in files)


@final
@dataclass(frozen=True)
class PluginManifest:
    """Everything that one plugin registers."""

    source: PluginSource
    entries: tuple[Entry, ...] = ()
    broken: tuple[LoadFailure, ...] = ()
    presets: str = ""  # a folder of NAME.yaml
    studies: str = ""  # a folder of NAME/study.yaml
    hooks: tuple[str, ...] = ()
    dependencies: tuple[tuple[str, str], ...] = ()  # files outside of the plugin, and what they contained

    def to_json(self) -> dict[str, JSON]:
        """Return the manifest as JSON, for the index on disk."""
        document = dataclasses.asdict(dataclasses.replace(self, entries=(), broken=()))
        document["broken"] = [[failure.message, failure.slot, failure.name] for failure in self.broken]
        document["entries"] = [
            {**dataclasses.asdict(dataclasses.replace(entry, options=())), "options": [*map(to_json, entry.options)]}
            for entry in self.entries
        ]
        return document

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> PluginManifest:
        """Return the manifest that `to_json` wrote."""
        source = PluginSource(**document["source"])
        fields = {
            "source": source,
            "entries": tuple(_entry(entry, source) for entry in document["entries"]),
            "broken": tuple(LoadFailure(source, *failure) for failure in document["broken"]),
            "hooks": tuple(document["hooks"]),
            "dependencies": tuple((path, content) for path, content in document["dependencies"]),
        }
        return cls(**{**document, **fields})


def _entry(document: Mapping[str, Any], source: PluginSource) -> Entry:
    fields = {
        "source": source,
        "options": tuple(from_json(option) for option in document["options"]),
        "parts": tuple(Part(*part) for part in document["parts"]),
        "reads": tuple(document["reads"]),
        "terms": tuple(document["terms"]),
        "values": _values(document["values"]),
    }
    return Entry(**{**document, **fields})


def _values(document: Mapping[str, Any]) -> ComponentValues:
    lists = {name: tuple(document[name]) for name in ("files", "versions", "reasons")}
    return ComponentValues(**{**document, **lists})


@final
@dataclass(frozen=True)
class Index:
    """All components by slot and name. A name that two plugins claim is withheld from both, in any order of loading."""

    plugins: tuple[PluginManifest, ...]
    classes: Mapping[tuple[str, str], type[Any]] = dataclasses.field(default_factory=dict, compare=False, repr=False)
    """Classes of a registry: their values may have changed since they were registered."""
    sources: Mapping[Path, LoadedSource] = dataclasses.field(default_factory=dict, compare=False, repr=False)
    """Sources of the modules of these classes, as they were imported."""
    planned: dict[tuple[str, str], ComponentValues] = dataclasses.field(default_factory=dict, compare=False, repr=False)
    """Values of components in the latest plan."""
    loads_named: bool = True
    """Whether plugin files that a study, a spec or a record names may be loaded, too."""

    @property
    def plugin_files(self) -> tuple[Path, ...]:
        """Plugins that are files, by their absolute paths."""
        sources = (plugin.source for plugin in self.plugins)
        return tuple(Path(source.value) for source in sources if source.value and not source.distribution)

    def new_files(self, files: Iterable[Path]) -> list[Path]:
        """Return the plugin files that are not loaded yet, each once."""
        loaded = {*self.plugin_files}
        return list({path.resolve(): path for path in files if path.resolve() not in loaded}.values())

    def hashes(self) -> CodeHashes:
        """Return a reader of source files, as they are now or as they were imported."""
        if not self.classes:
            return CodeHashes()
        return CodeHashes({path: source.text for path, source in loaded_sources(self.sources).items()})

    def values(self, slot: str, name: str, hashes: CodeHashes | None = None) -> ComponentValues:
        """Return the values that a component's code depends on: those of now, if its class is loaded."""
        entry = self.find(slot, name)
        if (slot, name) not in self.classes:
            return entry.values
        from paribus.registry.component_values import component_values

        return component_values(self.classes[slot, name], slot, hashes)

    @cached_property
    def claims(self) -> Mapping[tuple[str, str], tuple[Entry, ...]]:
        """All entries for each slot and name, also those that conflict."""
        claims: dict[tuple[str, str], tuple[Entry, ...]] = {}
        for plugin in sorted(self.plugins, key=lambda plugin: plugin.source):
            for entry in plugin.entries:
                key = (entry.slot, entry.name)
                claims[key] = (*claims.get(key, ()), entry)
        return claims

    @cached_property
    def entries(self) -> Mapping[str, Mapping[str, Entry]]:
        """All usable components, by slot and name."""
        entries: dict[str, dict[str, Entry]] = {slot: {} for slot in SLOTS}
        for (slot, name), claimants in sorted(self.claims.items()):
            if len(claimants) == 1:
                entries[slot][name] = claimants[0]
        return entries

    @cached_property
    def broken(self) -> tuple[LoadFailure, ...]:
        """All failures of all plugins."""
        return tuple(failure for plugin in self.plugins for failure in plugin.broken)

    def warnings(self) -> list[str]:
        """Return the failures and conflicts of plugins, one line each; they are errors only where they are needed."""
        sources = {
            f"{slot}.{name}": [entry.source for entry in claimants] for (slot, name), claimants in self.claims.items()
        }
        for kind in ("preset", "study"):
            for name, files in self.files(kind).items():
                sources[f"the {kind} {name}"] = [source for source, _ in files]
        conflicts = [_conflict(name, claimants) for name, claimants in sources.items() if len(claimants) > 1]
        return [*map(str, self.broken), *conflicts]

    def names(self, slot: str) -> tuple[str, ...]:
        """Return the names of the components of a slot."""
        return tuple(self.entries[slot])

    def find(self, slot: str, name: str) -> Entry:
        """Return a component, or raise an error with the valid names and the failed plugin that may contain it."""
        problem = self.problem(slot, name)
        if problem is not None:
            raise error_from([problem])
        return self.entries[slot][name]

    def problem(self, slot: str, name: str, *, path: str = "", location: str = "") -> Problem | None:
        """Return the reason why this component cannot be used, or None if it can."""
        path = path or slot
        if slot not in self.entries:
            return Problem(
                code="unknown-slot",
                path=path,
                location=location,
                message=f'unknown slot "{slot}"',
                valid=join_names(SLOTS),
                suggestion=closest_match(slot, SLOTS),
            )
        claimants = self.claims.get((slot, name), ())
        if len(claimants) == 1:
            return None
        if claimants:
            message = _conflict(f"{slot}.{name}", [entry.source for entry in claimants])
            return Problem(code="duplicate-name", path=path, location=location, message=message)
        failures = [failure for failure in self.broken if failure.may_contain(slot, name)]
        if not failures and (hint := file_hint(name, location)):
            message = f'unknown {slot} "{name}"'
            return Problem(code="unknown-component", path=path, location=location, message=message, hint=hint)
        return Problem(
            code="plugin-failed" if failures else "unknown-component",
            path=path,
            location=location,
            message="; ".join([f'unknown {slot} "{name}"', *map(str, failures)]),
            valid=self._valid(slot),
            suggestion=self._suggestion(slot, name),
        )

    def _suggestion(self, slot: str, name: str) -> str:
        """Return the component of a slot, or an option of one, that an unknown name probably means."""
        entries = self.entries[slot]
        meant = suggest_name(name, entries.values(), lambda: closest_match(name, entries))
        component = meant.removeprefix(f"{slot}.")
        return component if component in entries else meant

    def _valid(self, slot: str) -> str:
        names_by_source: dict[str, list[str]] = {}
        for name, entry in self.entries[slot].items():
            names_by_source.setdefault(str(entry.source), []).append(name)
        groups = [f"{join_names(names)} ({source})" for source, names in names_by_source.items()]
        return ", ".join(groups) or "none is installed"

    @property
    def presets(self) -> Mapping[str, Path]:
        """Files of the presets, by name."""
        return {name: files[0][1] for name, files in self.files("preset").items() if len(files) == 1}

    @property
    def studies(self) -> Mapping[str, Path]:
        """Files of the studies that plugins ship, by name."""
        return {name: files[0][1] for name, files in self.files("study").items() if len(files) == 1}

    def preset(self, name: str) -> Path:
        """Return the file of a preset."""
        return self._file("preset", name)

    def study(self, name: str) -> Path:
        """Return the file of a study that a plugin ships."""
        return self._file("study", name)

    def _file(self, kind: str, name: str) -> Path:
        path = f"{name}.yaml" if kind == "preset" else f"{name}/study.yaml"
        named = [Path(folder, path) for _, folder in self._folders(kind)] if NAME.fullmatch(name) else []
        if len(existing := [file for file in named if file.is_file()]) == 1:
            return existing[0]  # without reading the folders
        files_by_name = self.files(kind)
        files = files_by_name.get(name, [])
        if len(files) == 1:
            return files[0][1]
        if files:
            message = _conflict(f"the {kind} {name}", [source for source, _ in files])
            raise error_from([Problem(code="duplicate-name", message=message)])
        valid = f"{join_names(files_by_name) or 'none is installed'}, or a path that ends in .yaml"
        message, near = f'unknown {kind} "{name}"', closest_match(name, files_by_name)
        raise SpecError(Problem(code=f"unknown-{kind}", message=message, valid=valid, suggestion=near))

    def files(self, kind: str) -> dict[str, list[tuple[PluginSource, Path]]]:
        """Return the plugins and files of all presets or studies, by name.

        Reads the folders at every call, since a file may be added without a change of code.
        """
        files: dict[str, list[tuple[PluginSource, Path]]] = {}
        for source, folder in self._folders(kind):
            for file in sorted(Path(folder).glob("*.yaml" if kind == "preset" else "*/study.yaml")):
                name = file.stem if kind == "preset" else file.parent.name
                if NAME.fullmatch(name):
                    files.setdefault(name, []).append((source, file))
        return dict(sorted(files.items()))

    def _folders(self, kind: str) -> list[tuple[PluginSource, str]]:
        """Return the plugins that have presets or studies, and the folders of these."""
        folders = [(plugin.source, plugin.presets if kind == "preset" else plugin.studies) for plugin in self.plugins]
        return [(source, folder) for source, folder in folders if folder]


def _conflict(name: str, sources: Iterable[PluginSource]) -> str:
    plugins = " and ".join(f"plugin {source}" for source in sorted(sources))
    return f"{name} is claimed by {plugins}; uninstall one, or ask its author for another name"


def error_from(problems: Iterable[Problem]) -> ParibusError:
    """Combine problems into one error: a `PluginError` if a plugin causes any of them, else a `SpecError`."""
    problems = tuple(problems)
    error_type = PluginError if any(problem.code in PLUGIN_CODES for problem in problems) else SpecError
    return error_type(*problems)
