"""The registry: an immutable object with the classes of all components, and their index."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, final

from paribus.errors import PluginError, Problem
from paribus.registry.class_reader import read_component
from paribus.registry.component_index import Entry, Index, PluginManifest, PluginSource
from paribus.registry.loaded_sources import loaded_sources
from paribus.registry.plugin_loading import (
    LoadedPlugin,
    file_sources,
    find_plugin_sources,
    lifecycle_hooks,
    load_class,
    load_plugin,
)
from paribus.registry.return_types import check_methods

if TYPE_CHECKING:
    import pluggy


@final
@dataclass(frozen=True, repr=False)
class Registry:
    """Installed components: `get` returns their classes, `index` their metadata."""

    index: Index
    hook: pluggy.HookRelay = field(repr=False)
    files: tuple[Path, ...] = ()
    """Plugins that were named as files: another process loads these to have the same registry."""
    local: tuple[str, ...] = ()
    """Components that `with_components` added, as slot.name: no other process can have them."""
    loaded: tuple[LoadedPlugin, ...] = field(default=(), repr=False)

    def __repr__(self) -> str:
        counts = ", ".join(f"{slot} {len(entries)}" for slot, entries in self.index.entries.items() if entries)
        number = len(self.index.plugins)
        return f"<registry of {number} {'plugin' if number == 1 else 'plugins'}: {counts}>"

    def get(self, slot: str, name: str) -> type[Any]:
        """Return a class, or raise an error with the valid names and the failed plugin that may contain it."""
        entry = self.index.find(slot, name)
        return self.index.classes[entry.slot, entry.name]

    def with_components(self, **slots: Mapping[str, type[Any]]) -> Registry:
        """Return this registry with more components: `registry.with_components(attention={"mine": Mine})`."""
        source = PluginSource("", "with_components()")
        entries: list[Entry] = []
        classes: dict[tuple[str, str], type[Any]] = {}
        for slot, components in slots.items():
            if slot not in self.index.entries:
                raise PluginError(Problem(code="plugin-failed", path=slot, message=f'unknown slot "{slot}"'))
            for name, component in components.items():
                try:
                    entries.append(read_component(slot, name, component, source))
                except (TypeError, ValueError) as error:
                    path = f"{slot}.{name}"
                    raise PluginError(Problem(code="plugin-failed", path=path, message=str(error))) from error
                classes[slot, name] = component
                check_methods(component, slot, name)
        manifest = PluginManifest(source, tuple(entries))
        index = replace(
            self.index,
            plugins=(*self.index.plugins, manifest),
            classes={**self.index.classes, **classes},
            sources=loaded_sources(self.index.sources),
            planned={},
        )
        for slot, name in classes:
            index.find(slot, name)  # raises if the name is taken
        local = tuple(sorted({*self.local, *(f"{slot}.{name}" for slot, name in classes)}))
        return replace(self, index=index, local=local)

    def with_plugins(self, files: Sequence[Path]) -> Registry:
        """Return this registry with the components of these plugin files, too; those it has are not loaded again."""
        new = self.index.new_files(files)
        if not new:
            return self
        loaded = [load_plugin(source) for source in file_sources(new)]
        manifests = tuple(plugin.manifest for plugin in loaded)
        raise_load_failures(manifests)
        index = replace(
            self.index,
            plugins=tuple(sorted((*self.index.plugins, *manifests), key=lambda plugin: plugin.source)),
            classes={**self.index.classes, **_classes(loaded)},
            sources=loaded_sources(self.index.sources),
            planned={},
        )
        every = (*self.loaded, *loaded)
        return replace(self, index=index, hook=lifecycle_hooks(every), files=(*self.files, *new), loaded=every)


@final
class LazyRegistry:
    """Classes of an index; a plugin is imported when one of its classes is first requested."""

    def __init__(self, index: Index) -> None:
        self.index = index
        self._classes: dict[tuple[str, str], type[Any]] = {}

    def get(self, slot: str, name: str) -> type[Any]:
        """Return a class, or raise the error that the index has for it."""
        if (slot, name) not in self._classes:
            self._classes[slot, name] = load_class(self.index.find(slot, name).source, slot, name)
        return self._classes[slot, name]


def installed(
    *, plugins: Sequence[Path | str] = (), only: Collection[str] | None = None, no_plugins: bool = False
) -> Registry:
    """Load all installed plugins; a file in `plugins` that fails to load is an error."""
    loaded = [load_plugin(source) for source in find_plugin_sources(plugins, only=only, no_plugins=no_plugins)]
    manifests = tuple(plugin.manifest for plugin in loaded)
    raise_load_failures(manifests)
    files = tuple(Path(manifest.source.value) for manifest in manifests if not manifest.source.distribution)
    loads_named = only is None and not no_plugins
    index = Index(manifests, _classes(loaded), loaded_sources({}), loads_named=loads_named)
    return Registry(index, lifecycle_hooks(loaded), files, loaded=tuple(loaded))


def _classes(loaded: Sequence[LoadedPlugin]) -> dict[tuple[str, str], type[Any]]:
    return {key: component for plugin in loaded for key, component in plugin.classes.items()}


def raise_load_failures(manifests: Sequence[PluginManifest]) -> None:
    """Raise the failures of plugins that the user named as files; those of other plugins are only warnings."""
    failures = [failure for manifest in manifests if not manifest.source.distribution for failure in manifest.broken]
    if failures:
        raise PluginError(*(Problem(code="plugin-failed", message=str(failure)) for failure in failures))
