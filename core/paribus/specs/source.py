"""Saved models that a spec names: under `from:` the one whose tensors it begins from, under `teacher:` its teacher."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from paribus.errors import StoreError, listed
from paribus.saved import Saved, saved
from paribus.specs.tree import UNREAD, shown
from paribus.specs.values import Checking

SOURCES: Final = ("from", "teacher")
_KEYS: Final = ("name", "sha256")  # what `from: FOLDER` is short for, and what it resolves to


def source(checking: Checking, given: Mapping[str, Any], found: Mapping[str, Any], key: str) -> Any:
    """The folder, and the hash of what is in it: that the spec is of this very model, a trial's identity depends on.

    A hash alone is a model that was there once, as a trained one remembers its teacher: it can be loaded, not trained.
    """
    node = given.get(key)
    if node is None:
        return None
    node = {"name": node} if isinstance(node, str) else node
    if not isinstance(node, Mapping) or not all(isinstance(node.get(each, ""), str) for each in _KEYS) or not node:
        what = f"expected the folder of a saved model, but this is {shown(node)}"
        return checking.wrong("wrong-type", (key,), what, f"{key}: runs/train/HASH")
    for each in node:
        if each not in _KEYS:
            checking.unknown(each, (key, each), _KEYS)
    if "name" not in node:
        return {"sha256": node.get("sha256", "")}
    try:
        there = saved(node["name"])
    except StoreError as error:
        for problem in error.problems:
            checking.wrong(problem.code, (key,), f"`{problem.where or node['name']}`: {problem.what}", problem.valid)
        return UNREAD
    _same_tokens(checking, there, found)
    if key == "teacher":
        _same_streams(checking, there, found)
    known = node.get("sha256")
    if known is not None and known != there.sha256:
        what = f"`{node['name']}` holds another model than when this spec was resolved: {there.sha256}"
        checking.wrong("changed", (key, "sha256"), what, f"{key}={node['name']}, for what is there now")
    return {"name": node["name"], "sha256": there.sha256}


def _same_streams(checking: Checking, there: Saved, found: Mapping[str, Any]) -> None:
    """A teacher reads what the model reads: it has no stack that is given nothing."""
    topologies = checking.index.entries["topology"]
    names = [
        node.get("name") if isinstance(node, Mapping) else None
        for node in (there.spec.get("topology"), found["topology"])
    ]
    theirs, ours = (topologies.get(str(name)) for name in names)
    if theirs is None or ours is None:
        return
    paths = [{part.path: part.name for part in entry.parts} for entry in (theirs, ours)]
    silent = [name for path, name in paths[0].items() if path not in paths[1]]
    if silent:
        what = f"the teacher is of the topology `{theirs.name}`, whose {listed(silent)} would be given nothing to read"
        checking.wrong("does-not-fit", ("teacher",), what, f"a model of the topology {ours.name}")


def _same_tokens(checking: Checking, there: Saved, found: Mapping[str, Any]) -> None:
    """By name and options here, and by its fingerprint once the corpus has been read."""
    asked, read = found.get("tokenizer"), there.spec.get("tokenizer")
    if there.tokenizer and isinstance(asked, Mapping) and asked != read:
        said = read.get("name") if isinstance(read, Mapping) else read
        what = (
            f"the saved model reads the tokenizer `{said}`, and this is {_options(asked)}: ids would mean other tokens"
        )
        checking.wrong("other-tokenizer", ("tokenizer",), what, f"tokenizer {_options(read)}")


def _options(node: Any) -> str:
    if not isinstance(node, Mapping):
        return f"`{node}`"
    options = {key: value for key, value in node.items() if key != "name"}
    return f"`{node.get('name')}`" + (f" with {options}" if options else "")
