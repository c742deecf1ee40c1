"""Loading of a spec: its preset, then its own values, then overrides in Hydra's syntax (`attention.kv_heads=2`)."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from paribus.errors import Problem, SpecError, StoreError
from paribus.registry import Index
from paribus.specs.named_plugins import place_files
from paribus.specs.tree import Keys, Tree, copy_values, join_keys, plain_tree, value_text
from paribus.specs.yaml_reader import read_file, read_yaml
from paribus.storage.saved_model import read_model, unbound

if TYPE_CHECKING:
    from omegaconf import DictConfig


Source: TypeAlias = "str | Path | Mapping[str, Any] | DictConfig"

_DEEPEST: Final = 16  # chain of presets


def load(source: Source, overrides: Sequence[str], index: Index) -> Tree:
    """Return all values, merged, with their locations, before any validation."""
    tree = _based(_read(source, index), index, ())
    apply_overrides(tree, overrides)
    return tree


def apply_preset(tree: Tree, index: Index) -> Tree:
    """Merge a spec over its preset."""
    return _based(tree, index, ())


def _read(source: Source, index: Index) -> Tree:
    if isinstance(source, Path) or (isinstance(source, str) and (source.endswith((".yaml", ".yml")) or "/" in source)):
        return place_files(read_file(Path(source)), Path(source).parent)
    if isinstance(source, str):
        return read_file(index.preset(source), f"{source}.yaml")
    value: Any = source
    if type(source).__module__.partition(".")[0] == "omegaconf":
        from omegaconf import OmegaConf

        value = OmegaConf.to_container(value, resolve=False)
    if not isinstance(value, Mapping):
        raise SpecError(Problem(code="not-a-mapping", message=f"expected a mapping, got {value_text(value)}"))
    return plain_tree(value)


def _based(spec: Tree, index: Index, chain: tuple[str, ...]) -> Tree:
    """Merge a spec over its preset; its dotted keys are overrides."""
    tree = _of_source(spec)
    name = spec.data.pop("preset", None)
    dotted = {key: spec.subtree((key,)) for key in spec.data if "." in key}
    for key in dotted:
        del spec.data[key]
    if name is not None:
        tree = _preset(name, spec, index, chain)
    tree.merge(spec)
    for key, value in dotted.items():
        location = spec.location((key,))
        _refuse_written_twice(tree, spec, key, value.data, location)
        set_path(tree, key, value, location)
    return tree


def _refuse_written_twice(tree: Tree, spec: Tree, key: str, value: Any, location: str) -> None:
    """Report a dotted key of a file that the same file also writes nested, as `dims.layers` and `dims: {layers: …}`.

    A Python mapping has no locations: there, dotted keys change a spec that they are added to.
    """
    keys = _keys_of(key)
    nested_location = spec.locations.get(keys)
    if nested_location is None or not location:
        return
    with suppress(KeyError):
        if not (isinstance(value, Mapping) and isinstance(spec.get(keys), Mapping)):
            tree.problems.append(_repeated_key(key, nested_location, location))


def repeated_overrides(overrides: Sequence[str]) -> list[Problem]:
    """Return a problem for each override of a command whose key an earlier one has set.

    As in Hydra, order matters where one override contains another: `attention=gqa attention.kv_heads=2`. In Python,
    lists of overrides are composed, and the last one of a key applies.
    """
    first_locations: dict[Keys, str] = {}
    problems: list[Problem] = []
    for number, override in enumerate(overrides, start=1):
        path, equals, _ = override.partition("=")
        location = f"override {number}, `{override[:80]}`"
        first_location = first_locations.setdefault(_keys_of(path), location)
        if equals and first_location != location:
            problems.append(_repeated_key(path, first_location, location))
    return problems


def _repeated_key(path: str, first: str, second: str) -> Problem:
    message = f"the key `{path}` is set twice: by {first} and by {second}"
    return Problem(code="duplicate-key", path=path, location=second, message=message, valid="one value for each key")


def _keys_of(path: str) -> Keys:
    """Return the keys of a dotted path; a number is an index, so that `attention.0` equals `attention.00`."""
    return tuple(int(word) if word.isdecimal() else word for word in path.split("."))


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
        raise SpecError(*spec.problems, Problem(code="preset-cycle", path="preset", location=location, message=message))
    return _based(read_file(index.preset(name), f"{name}.yaml"), index, (*above, name))


_PATH: Final = re.compile(r"[A-Za-z_][\w-]*(\.[\w-]+)*")
_MAX_KEYS: Final = 32  # of the path of an override


def apply_overrides(tree: Tree, overrides: Sequence[str]) -> None:
    """Apply each override in order; an invalid one is added to the tree's problems."""
    for number, override in enumerate(overrides, start=1):
        location = f"override {number}"
        path, equals, text = str(override).partition("=")
        if not equals or not _PATH.fullmatch(path) or path.count(".") >= _MAX_KEYS:
            message = f'expected key=value, got "{str(override)[:200]}"'
            valid = "key=value with dots between keys: attention=gqa attention.kv_heads=2 attention.0=mqa"
            tree.problems.append(Problem(code="invalid-override", location=location, message=message, valid=valid))
        elif not text:
            message, valid = "expected a value after `=`", f"{path}=null for none, {path}='\"\"' for empty text"
            tree.problems.append(
                Problem(code="invalid-override", path=path, location=location, message=message, valid=valid)
            )
        else:
            set_path(tree, path, _value(text, location), location)


def set_path(tree: Tree, path: str, value: Tree, location: str) -> None:
    """Merge one value into a tree at a dotted path; numbers are indices of lists."""
    keys: Keys = ()
    node: Any = tree.data
    for word in path.split("."):
        key: str | int = word
        if isinstance(node, list):
            if not word.isdecimal() or int(word) >= len(node):
                message = f"`{join_keys(keys)}` is a list of {len(node)} items; unknown index `{word}`"
                valid = f"0 to {len(node) - 1}" if node else f"{join_keys(keys)}=[…], as it is empty"
                tree.problems.append(
                    Problem(code="unknown-index", path=path, location=location, message=message, valid=valid)
                )
                return
            key = int(word)
        keys = (*keys, key)
        try:
            node = node[key]
        except (KeyError, TypeError):
            node = None
    problems = [Problem(**{**vars(problem), "path": _joined(keys, problem.path)}) for problem in value.problems]
    tree.merge(Tree(value.data, value.locations, problems), keys)


def _value(text: str, location: str) -> Tree:
    try:
        value = read_yaml(text, location, lines=False)
    except SpecError as error:
        value = Tree(None, {}, list(error.problems))
    value.locations.setdefault((), location)
    return value


def _joined(keys: Keys, path: str) -> str:
    return join_keys((*keys, path)) if path else join_keys(keys)
