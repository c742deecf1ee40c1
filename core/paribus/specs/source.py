"""What stands under `from:`: the saved model whose tensors a model begins from, as far as they fit."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from paribus.errors import StoreError
from paribus.saved import Saved, saved
from paribus.specs.tree import UNREAD, shown
from paribus.specs.values import Checking

_PLACE: Final = ("from",)
_KEYS: Final = ("name", "sha256")  # what `from: FOLDER` is short for, and what it resolves to


def source(checking: Checking, given: Mapping[str, Any], found: Mapping[str, Any]) -> Any:
    """The folder, and the hash of what is in it: that the spec is of this very model, a trial's identity depends on."""
    node = given.get("from")
    if node is None:
        return None
    node = {"name": node} if isinstance(node, str) else node
    if not isinstance(node, Mapping) or not isinstance(node.get("name"), str):
        what = f"expected the folder of a saved model, but this is {shown(node)}"
        return checking.wrong("wrong-type", _PLACE, what, "from: runs/train/HASH")
    for key in node:
        if key not in _KEYS:
            checking.unknown(key, (*_PLACE, key), _KEYS)
    try:
        there = saved(node["name"])
    except StoreError as error:
        for problem in error.problems:
            checking.wrong(problem.code, _PLACE, f"`{problem.where or node['name']}`: {problem.what}", problem.valid)
        return UNREAD
    _same_tokens(checking, there, found)
    known = node.get("sha256")
    if known is not None and known != there.sha256:
        what = f"`{node['name']}` holds another model than when this spec was resolved: {there.sha256}"
        checking.wrong("changed", (*_PLACE, "sha256"), what, f"from={node['name']}, for what is there now")
    return {"name": node["name"], "sha256": there.sha256}


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
