"""Public functions that return a resolved spec, its canonical bytes and its hash."""

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
    """Return a validated, resolved, read-only spec from a preset's name, a path or a mapping, with overrides.

    `paribus.spec("bert-tiny", "attention=gqa", "attention.kv_heads=2")`
    """
    return freeze(resolved(name_or_path, *overrides, registry=registry))


def resolved(source: Source, *overrides: str, registry: Registry | Index | None = None) -> dict[str, Any]:
    """Return a resolved spec as plain dicts and lists, for the engine."""
    index = index_of(registry)
    return check(load(source, overrides, index), index)


def freeze(resolved: Mapping[str, Any]) -> DictConfig:
    """Return a resolved spec as a read-only DictConfig."""
    from omegaconf import OmegaConf

    return OmegaConf.create(dict(resolved), flags={"readonly": True})


def index_of(components: Registry | Index | None) -> Index:
    """Return the component index of a registry, or that of the installed plugins."""
    if components is None:
        return registry.index()
    return components if isinstance(components, registry.Index) else components.index


def canonical(spec: Mapping[str, Any] | DictConfig) -> bytes:
    """Return the canonical form of a resolved spec: JSON with sorted keys."""
    return atomic.canonical_json(_plain(spec))


def spec_hash(spec: Mapping[str, Any] | DictConfig) -> str:
    """Return the sha256 of the canonical form."""
    return atomic.digest(canonical(spec))


def _plain(spec: Any) -> Any:
    if type(spec).__module__.partition(".")[0] != "omegaconf":
        return spec
    from omegaconf import OmegaConf

    return OmegaConf.to_container(spec, resolve=True)
