"""Loading of a spec from a name, a file or a mapping: presets first, then its own values, then overrides."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from paribus.errors import Problem, SpecError, StoreError
from paribus.registry import Index
from paribus.specs import input_limits, override
from paribus.specs.tree import Tree, copy_values, value_text
from paribus.specs.yaml_reader import read_file
from paribus.storage.saved_model import read_model, unbound

if TYPE_CHECKING:
    from omegaconf import DictConfig

Source: TypeAlias = "str | Path | Mapping[str, Any] | DictConfig"

_DEEPEST: Final = 16  # chain of presets


def load(source: Source, overrides: Sequence[str], index: Index) -> Tree:
    """Return all values, merged, with their locations, before any validation."""
    tree = _based(_read(source, index), index, ())
    override.apply_overrides(tree, overrides)
    return tree


def apply_preset(tree: Tree, index: Index) -> Tree:
    """Merge a spec over its preset."""
    return _based(tree, index, ())


def _read(source: Source, index: Index) -> Tree:
    if isinstance(source, Path):
        return read_file(source)
    if isinstance(source, str):
        if source.endswith((".yaml", ".yml")) or "/" in source:
            return read_file(Path(source))
        return read_file(index.preset(source), f"{source}.yaml")
    value: Any = source
    if type(source).__module__.partition(".")[0] == "omegaconf":
        from omegaconf import OmegaConf

        value = OmegaConf.to_container(value, resolve=False)
    if not isinstance(value, Mapping):
        raise SpecError(Problem(code="no-mapping", message=f"expected a mapping, got {value_text(value)}"))
    return input_limits.plain_tree(value)


def _based(spec: Tree, index: Index, chain: tuple[str, ...]) -> Tree:
    """Merge a spec over its preset; its dotted keys are overrides."""
    tree = _of_source(spec)
    name = spec.data.pop("preset", None)
    dotted = {key: spec.data.pop(key) for key in [key for key in spec.data if "." in key]}
    if name is not None:
        tree = _preset(name, spec, index, chain)
    tree.merge(spec)
    for key, value in dotted.items():
        location = spec.location((key,))
        locations = {keys[1:]: mark for keys, mark in spec.locations.items() if keys[:1] == (key,)}
        override.set_path(tree, key, Tree(value, locations or {(): location}), location)
    return tree


def _of_source(spec: Tree) -> Tree:
    """Return the spec of the saved model under `from:`, unless the spec has a preset or a topology of its own."""
    node = spec.data.get("from")
    name = node.get("name") if isinstance(node, Mapping) else node
    if not isinstance(name, str) or {"preset", "topology"} & set(spec.data):
        return Tree({})
    try:
        saved = unbound(read_model(name).spec)
    except StoreError as error:  # without it, other problems would only follow from this one
        location = spec.location(("from",))
        raise SpecError(
            *(replace(problem, path="from", location=location or problem.location) for problem in error.problems)
        ) from error
    return Tree(copy_values({key: value for key, value in saved.items() if value is not None and key != "from"}))


def _preset(name: Any, spec: Tree, index: Index, above: tuple[str, ...]) -> Tree:
    location = spec.location(("preset",))
    if not isinstance(name, str):
        message = f"expected the name of a preset, got {value_text(name)}"
        raise SpecError(*spec.problems, Problem(code="wrong-type", path="preset", location=location, message=message))
    if name in above or len(above) >= _DEEPEST:
        path = " → ".join((*above, name))
        message = f"presets that are based on each other: {path}"
        raise SpecError(*spec.problems, Problem(code="preset", path="preset", location=location, message=message))
    return _based(read_file(index.preset(name), f"{name}.yaml"), index, (*above, name))
