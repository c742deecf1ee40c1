"""From a name, a file or a mapping, and overrides, to one tree of plain values: presets below, overrides on top."""

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

_DEEPEST: Final = 16  # presets that begin from presets


def load(source: Source, overrides: Sequence[str], index: Index) -> Tree:
    """All that was said, merged, and where each thing was said; nothing is checked yet but that it can be read."""
    tree = _based(_read(source, index), index, ())
    override.apply_overrides(tree, overrides)
    return tree


def apply_preset(own: Tree, index: Index) -> Tree:
    """What was read, on top of the preset that it begins from."""
    return _based(own, index, ())


def _read(source: Source, index: Index) -> Tree:
    if isinstance(source, Path):
        return read_file(source)
    if isinstance(source, str):
        if source.endswith((".yaml", ".yml")) or "/" in source:
            return read_file(Path(source))
        return read_file(index.preset(source), f"{source}.yaml")
    given: Any = source
    if type(source).__module__.partition(".")[0] == "omegaconf":
        from omegaconf import OmegaConf

        given = OmegaConf.to_container(given, resolve=False)
    if not isinstance(given, Mapping):
        raise SpecError(Problem(code="no-mapping", message=f"a spec is a mapping, but this is {value_text(given)}"))
    return input_limits.plain_tree(given)


def _based(own: Tree, index: Index, above: tuple[str, ...]) -> Tree:
    """`own` on top of the preset that it begins from; dotted keys are overrides within it."""
    tree = _of_source(own)
    name = own.data.pop("preset", None)
    dotted = {key: own.data.pop(key) for key in [key for key in own.data if "." in key]}
    if name is not None:
        tree = _preset(name, own, index, above)
    tree.merge(own)
    for key, value in dotted.items():
        where = own.location((key,))
        below = {keys[1:]: mark for keys, mark in own.locations.items() if keys[:1] == (key,)}
        override.set_path(tree, key, Tree(value, below or {(): where}), where)
    return tree


def _of_source(own: Tree) -> Tree:
    """The spec of the saved model under `from:`, where nothing else is said to begin from: it keeps its shape."""
    node = own.data.get("from")
    name = node.get("name") if isinstance(node, Mapping) else node
    if not isinstance(name, str) or {"preset", "topology"} & set(own.data):
        return Tree({})
    try:
        found = unbound(read_model(name).spec)
    except StoreError as error:  # all that is missing without it need not be told
        where = own.location(("from",))
        raise SpecError(
            *(replace(each, path="from", location=where or each.location) for each in error.problems)
        ) from error
    return Tree(copy_values({key: value for key, value in found.items() if value is not None and key != "from"}))


def _preset(name: Any, own: Tree, index: Index, above: tuple[str, ...]) -> Tree:
    where = own.location(("preset",))
    if not isinstance(name, str):
        what = f"expected the name of a preset, but this is {value_text(name)}"
        raise SpecError(*own.problems, Problem(code="wrong-type", path="preset", location=where, message=what))
    if name in above or len(above) >= _DEEPEST:
        chain = " → ".join((*above, name))
        what = f"presets that begin from one another have no beginning: {chain}"
        raise SpecError(*own.problems, Problem(code="preset", path="preset", location=where, message=what))
    return _based(read_file(index.preset(name), f"{name}.yaml"), index, (*above, name))
