"""The public ways to a resolved spec, and what a resolved spec is called by: its canonical bytes and their hash."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from paribus import registry
from paribus.specs.check import check
from paribus.specs.load import Source, load
from paribus.storage import atomic

if TYPE_CHECKING:
    from omegaconf import DictConfig

    from paribus.registry import Index, Registry


def spec(name_or_path: Source, *overrides: str, registry: Registry | Index | None = None) -> DictConfig:
    """A spec by the name of a preset, by a path, or as a mapping, with overrides: checked, resolved, and read-only.

    `paribus.spec("bert-tiny", "attention=gqa", "attention.kv_heads=2")`
    """
    return freeze(resolved(name_or_path, *overrides, registry=registry))


def resolved(source: Source, *overrides: str, registry: Registry | Index | None = None) -> dict[str, Any]:
    """The same as plain dicts and lists, which is what the engine works on."""
    index = index_of(registry)
    return check(load(source, overrides, index), index)


def freeze(resolved: Mapping[str, Any]) -> DictConfig:
    """A resolved spec as users hold it."""
    from omegaconf import OmegaConf

    return OmegaConf.create(dict(resolved), flags={"readonly": True})


def index_of(given: Registry | Index | None) -> Index:
    """What is known of components: of this registry, or of what is installed."""
    if given is None:
        return registry.index()
    return given if isinstance(given, registry.Index) else given.index


def canonical(spec: Mapping[str, Any] | DictConfig) -> bytes:
    """The one spelling of a resolved spec: JSON with sorted keys."""
    return atomic.canonical_json(_plain(spec))


def spec_hash(spec: Mapping[str, Any] | DictConfig) -> str:
    """sha256 of the canonical spelling."""
    return atomic.digest(canonical(spec))


def _plain(spec: Any) -> Any:
    if type(spec).__module__.partition(".")[0] != "omegaconf":
        return spec
    from omegaconf import OmegaConf

    return OmegaConf.to_container(spec, resolve=True)
