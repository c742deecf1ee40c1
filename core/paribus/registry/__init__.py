"""The registry: the classes of all installed components, and an index of them that needs no torch."""

from paribus.registry.component_index import (
    ComponentValues,
    Entry,
    Index,
    LoadFailure,
    Part,
    PluginManifest,
    error_from,
)
from paribus.registry.index_cache import index, with_plugins
from paribus.registry.registry import LazyRegistry, Registry, installed

__all__ = [
    "ComponentValues",
    "Entry",
    "Index",
    "LazyRegistry",
    "LoadFailure",
    "Part",
    "PluginManifest",
    "Registry",
    "error_from",
    "index",
    "installed",
    "with_plugins",
]
