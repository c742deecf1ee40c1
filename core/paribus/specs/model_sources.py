"""Saved models that a spec names: under `from:` the one whose tensors it begins from, under `teacher:` its teacher."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from paribus.errors import StoreError, join_names
from paribus.specs.tree import UNREAD, value_text
from paribus.specs.values import Validator
from paribus.storage.saved_model import SavedModel, read_model, reading

SOURCES: Final = ("from", "teacher")
_KEYS: Final = ("name", "sha256")  # what `from: FOLDER` is short for, and what it resolves to
_MORE: Final = {"from": ("vocabulary", "learned", "trial"), "teacher": ()}
_LEARNED: Final = ("corpus", "tokenizer", "vocabulary")
_VOCABULARY: Final = ("kept", "new")


def resolve_source(validator: Validator, given: Mapping[str, Any], found: Mapping[str, Any], key: str) -> Any:
    """The folder, and the hash of what is in it: that the spec is of this very model, a trial's identity depends on.

    A hash alone is a model that was there once, as a trained one remembers its teacher: it can be loaded, not trained.
    Under `from:`, `vocabulary: new` says that the tokenizer is another than the saved model's, or learns anew. Else it
    is kept, and `learned` says of what it was learned, where that is not the spec's own corpus. `trial` is one that
    has yet to run: the stage of a study begins from it.
    """
    node = given.get(key)
    if node is None:
        return None
    node = {"name": node} if isinstance(node, str) else node
    if not _is_source(node):
        what = f"expected the folder of a saved model, but this is {value_text(node)}"
        return validator.add_error("wrong-type", (key,), what, f"{key}: runs/train/HASH")
    for each in node:
        if each not in (*_KEYS, *_MORE[key]):
            validator.add_unknown_key(each, (key, each), (*_KEYS, *_MORE[key]))
    if node.get("vocabulary", "kept") not in _VOCABULARY:
        what = f"expected one of the words, but this is {value_text(node['vocabulary'])}"
        validator.add_error("wrong-type", (key, "vocabulary"), what, join_names(_VOCABULARY))
    more: dict[str, Any] = {"vocabulary": "new"} if node.get("vocabulary") == "new" else {}
    if "name" not in node or "trial" in node:
        kept = {each: node[each] for each in ("name", "sha256", "trial") if each in node}
        return {**kept, **more, **_learned(validator, node.get("learned"), found, key)} or None
    return _there(validator, node, found, key, more)


def _there(
    validator: Validator, node: Mapping[str, Any], found: Mapping[str, Any], key: str, more: Mapping[str, Any]
) -> Any:
    """The saved model that is there now."""
    try:
        there = read_model(node["name"])
    except StoreError as error:
        for problem in error.problems:
            validator.add_error(
                problem.code, (key,), f"`{problem.location or node['name']}`: {problem.message}", problem.valid
            )
        return UNREAD
    learned: Any = None
    if not more and _same_tokens(validator, there, found, key) and there.tokenizer and key == "from":
        learned = reading(there.spec)
    if key == "teacher":
        _same_streams(validator, there, found)
        _same_sizes(validator, there, found)
    known = node.get("sha256")
    if known is not None and known != there.sha256:
        what = f"`{node['name']}` holds another model than when this spec was resolved: {there.sha256}"
        validator.add_error("changed", (key, "sha256"), what, f"{key}={node['name']}, for what is there now")
    return {
        "name": str(there.folder),
        "sha256": there.sha256,
        **more,
        **_learned(validator, learned, found, key),
    }


def _is_source(node: Any) -> bool:
    return (
        isinstance(node, Mapping)
        and bool(node)
        and all(isinstance(node.get(each, ""), str) for each in (*_KEYS, "trial"))
    )


def _learned(validator: Validator, learned: Any, found: Mapping[str, Any], key: str) -> dict[str, Any]:
    """Of what the kept vocabulary was learned; nothing where that is what the spec says as well."""
    if learned is None:
        return {}
    if not isinstance(learned, Mapping) or set(learned) != set(_LEARNED):
        what = f"expected what a vocabulary was learned from, but this is {value_text(learned)}"
        validator.add_error("wrong-type", (key, "learned"), what, join_names(_LEARNED))
        return {}
    nodes = {
        slot: validator.read_component(slot, learned[slot], (key, "learned", slot), found["dims"])
        for slot in ("corpus", "tokenizer")
    }
    size = learned["vocabulary"]
    if size is not None and (isinstance(size, bool) or not isinstance(size, int) or size < 1):
        validator.add_error(
            "wrong-type", (key, "learned", "vocabulary"), f"this is {value_text(size)}", "a number of ids, or null"
        )
    whole = {**nodes, "vocabulary": size}
    own = {**{slot: found.get(slot) for slot in nodes}, "vocabulary": found["dims"].get("vocabulary")}
    if nodes["tokenizer"] is not UNREAD and nodes["tokenizer"] != own["tokenizer"]:
        what = f"the kept vocabulary is of the tokenizer {_options(nodes['tokenizer'])}, and this is another"
        validator.add_error("other-tokenizer", ("tokenizer",), what, f"tokenizer {_options(nodes['tokenizer'])}")
    return {} if whole == own else {"learned": whole}


def _same_streams(validator: Validator, there: SavedModel, found: Mapping[str, Any]) -> None:
    """A teacher reads what the model reads: it has no stack that is given nothing."""
    topologies = validator.index.entries["topology"]
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
        what = (
            f"the teacher is of the topology `{theirs.name}`, whose {join_names(silent)} would be given nothing to read"
        )
        validator.add_error("does-not-fit", ("teacher",), what, f"a model of the topology {ours.name}")


def _same_sizes(validator: Validator, there: SavedModel, found: Mapping[str, Any]) -> None:
    """What an objective holds against the teacher's is of one size, or it has an option that says the teacher's."""
    for key in ("objective", "evaluate"):
        several = isinstance(found.get(key), list)
        for place, node in enumerate(found[key] if several else [found.get(key)]):
            for option, what, valid in _sizes(validator, there, found, node):
                at = (key, place, option) if several else (key, option)
                validator.add_error("does-not-fit", at, what, valid)


def _sizes(
    validator: Validator, there: SavedModel, found: Mapping[str, Any], node: Any
) -> Iterator[tuple[str, str, str]]:
    """Options of an objective that should say a size of the teacher's, what is wrong with them, and what would do."""
    dims = there.spec.get("dims")
    if not isinstance(node, Mapping) or not isinstance(dims, Mapping):
        return
    entry = validator.index.entries["objective"].get(node["name"])
    for size, option in entry.traits.get("teacher", {}).items() if entry is not None else ():
        theirs, own = dims.get(size), node.get(option)
        if own is None and theirs != found["dims"].get(size):
            what = f"the teacher's `dims.{size}` is {theirs}, and the model's {found['dims'].get(size)}"
            yield option, what, f"{option}: {theirs}, which is then learned to be brought to"
        elif own not in (None, theirs):
            yield option, f"this is {own}, and the teacher's `dims.{size}` is {theirs}", f"{theirs}"


def _same_tokens(validator: Validator, there: SavedModel, found: Mapping[str, Any], key: str) -> bool:
    """By name and options here, and by its fingerprint once the corpus has been read."""
    asked, read = found.get("tokenizer"), there.spec.get("tokenizer")
    same = not there.tokenizer or not isinstance(asked, Mapping) or asked == read
    if not same:
        said = read.get("name") if isinstance(read, Mapping) else read
        what = (
            f"the saved model reads the tokenizer `{said}`, and this is {_options(asked)}: ids would mean other tokens"
        )
        other = (
            "; or `from.vocabulary: new`, which keeps the rows of the pieces that both have" if key == "from" else ""
        )
        validator.add_error("other-tokenizer", ("tokenizer",), what, f"tokenizer {_options(read)}{other}")
    return same


def _options(node: Any) -> str:
    if not isinstance(node, Mapping):
        return f"`{node}`"
    options = {key: value for key, value in node.items() if key != "name"}
    return f"`{node.get('name')}`" + (f" with {options}" if options else "")
