"""Saved models in a spec: initial weights under `from:`, and the teacher under `teacher:`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from paribus.errors import StoreError, join_names
from paribus.schema import Kind, Option
from paribus.specs.tree import UNREAD, value_text
from paribus.specs.values import Validator
from paribus.storage.saved_model import SavedModel, read_model, reading

SOURCES: Final = ("from", "teacher")
_KEYS: Final = ("name", "sha256")  # the keys that `from: FOLDER` resolves to
_MORE: Final = {"from": ("vocabulary", "learned", "trial"), "teacher": ("vocabulary",)}
_LEARNED: Final = ("corpus", "tokenizer", "vocabulary")
VOCABULARIES: Final = {"from": ("kept", "new", "unchecked"), "teacher": ("kept", "unchecked")}


def source_options(key: str) -> tuple[Option, ...]:
    """Return the options of `from` or `teacher` that a spec sets."""
    kept = Kind("choice", choices=VOCABULARIES[key])
    return (
        Option(
            "name", Kind("str"), "folder of a saved model, or the identity of a trial", required=True, example="gpt"
        ),
        Option("sha256", Kind("str", optional=True), "hash of the saved model, for a spec that refuses another one"),
        Option("vocabulary", kept, "whether the tokenizer is the saved model's", default="kept"),
    )


def resolve_source(validator: Validator, data: Mapping[str, Any], resolved: Mapping[str, Any], key: str) -> Any:
    """Return the folder of a saved model and the hash of its content, which the trial's identity includes.

    A hash without a folder names a model that may be gone, as a trained model records its teacher: such a spec can be
    loaded but not trained. Under `from:`, `vocabulary: new` means a tokenizer other than the saved model's. Otherwise
    the tokenizer is kept, and `learned` records its training corpus if that is not the spec's own. With `vocabulary:
    unchecked` the spec's tokenizer reads for a model whose own is unknown. `trial` is a trial of a previous stage that
    has yet to run.
    """
    node = data.get(key)
    if node is None:
        return None
    node = {"name": node} if isinstance(node, str) else node
    if not _is_source(node):
        message = f"expected the folder of a saved model, got {value_text(node)}"
        return validator.add_error("wrong-type", (key,), message, f"{key}: runs/train/HASH")
    validator.check_keys(node, (key,), (*_KEYS, *_MORE[key]))
    if node.get("vocabulary", "kept") not in VOCABULARIES[key]:
        message = f"expected a word, got {value_text(node['vocabulary'])}"
        validator.add_error("wrong-type", (key, "vocabulary"), message, join_names(VOCABULARIES[key]))
    is_kept = node.get("vocabulary", "kept") not in ("new", "unchecked")
    vocabulary: dict[str, Any] = {} if is_kept else {"vocabulary": node["vocabulary"]}
    if "name" not in node or "trial" in node:
        fields = {option: node[option] for option in ("name", "sha256", "trial") if option in node}
        return {**fields, **vocabulary, **_learned(validator, node.get("learned"), resolved, key)} or None
    return _there(validator, node, resolved, key, vocabulary)


def _there(
    validator: Validator, node: Mapping[str, Any], resolved: Mapping[str, Any], key: str, vocabulary: Mapping[str, Any]
) -> Any:
    """Read the saved model, and compare it with the spec."""
    try:
        model = read_model(node["name"])
    except StoreError as error:
        for problem in error.problems:
            validator.add_error(
                problem.code, (key,), f"`{problem.location or node['name']}`: {problem.message}", problem.valid
            )
        return UNREAD
    learned: Any = None
    if not vocabulary and _same_tokens(validator, model, resolved, key) and model.tokenizer and key == "from":
        learned = reading(model.spec)
    if key == "teacher":
        _same_streams(validator, model, resolved)
        _same_sizes(validator, model, resolved)
    expected_hash = node.get("sha256")
    if expected_hash is not None and expected_hash != model.sha256:
        message = f"`{node['name']}` has changed since this spec was resolved: {model.sha256}"
        validator.add_error("model-changed", (key, "sha256"), message, f"{key}={node['name']}, for the current model")
    return {
        "name": str(model.folder),
        "sha256": model.sha256,
        **vocabulary,
        **_learned(validator, learned, resolved, key),
    }


def _is_source(node: Any) -> bool:
    return (
        isinstance(node, Mapping)
        and bool(node)
        and all(isinstance(node.get(option, ""), str) for option in (*_KEYS, "trial"))
    )


def _learned(validator: Validator, learned: Any, resolved: Mapping[str, Any], key: str) -> dict[str, Any]:
    """Return the training data of the kept vocabulary, or nothing if it equals the spec's own."""
    if learned is None:
        return {}
    if not isinstance(learned, Mapping) or set(learned) != set(_LEARNED):
        message = f"expected the training data of the vocabulary, got {value_text(learned)}"
        validator.add_error("wrong-type", (key, "learned"), message, join_names(_LEARNED))
        return {}
    nodes = {
        slot: validator.read_component(slot, learned[slot], (key, "learned", slot), resolved["dims"])
        if slot == "tokenizer" or learned[slot] is not None  # a model of own batches has no corpus
        else None
        for slot in ("corpus", "tokenizer")
    }
    size = learned["vocabulary"]
    if size is not None and (isinstance(size, bool) or not isinstance(size, int) or size < 1):
        validator.add_error(
            "wrong-type", (key, "learned", "vocabulary"), f"got {value_text(size)}", "a number of ids, or null"
        )
    learned_values = {**nodes, "vocabulary": size}
    spec_values = {**{slot: resolved.get(slot) for slot in nodes}, "vocabulary": resolved["dims"].get("vocabulary")}
    if nodes["tokenizer"] is not UNREAD and nodes["tokenizer"] != spec_values["tokenizer"]:
        message = f"the kept vocabulary has the tokenizer {_options(nodes['tokenizer'])}, got another"
        validator.add_error("other-tokenizer", ("tokenizer",), message, f"tokenizer {_options(nodes['tokenizer'])}")
    return {} if learned_values == spec_values else {"learned": learned_values}


def _same_streams(validator: Validator, model: SavedModel, resolved: Mapping[str, Any]) -> None:
    """Require that the student has an input for each stack of the teacher."""
    topologies = validator.index.entries["topology"]
    names = [
        node.get("name") if isinstance(node, Mapping) else None
        for node in (model.spec.get("topology"), resolved["topology"])
    ]
    teacher, student = (topologies.get(str(name)) for name in names)
    if teacher is None or student is None:
        return
    paths = [{part.path: part.name for part in entry.parts} for entry in (teacher, student)]
    unfed = [name for path, name in paths[0].items() if path not in paths[1]]
    if unfed:
        message = f"the teacher is of the topology `{teacher.name}`, whose {join_names(unfed)} would have no input"
        validator.add_error("does-not-fit", ("teacher",), message, f"a model of the topology {student.name}")


def _same_sizes(validator: Validator, model: SavedModel, resolved: Mapping[str, Any]) -> None:
    """Require equal sizes of student and teacher where an objective compares them, or an option with the teacher's."""
    for key in ("objective", "evaluate"):
        several = isinstance(resolved.get(key), list)
        for index, node in enumerate(resolved[key] if several else [resolved.get(key)]):
            for option, message, valid in _sizes(validator, model, resolved, node):
                keys = (key, index, option) if several else (key, option)
                validator.add_error("does-not-fit", keys, message, valid)


def _sizes(
    validator: Validator, model: SavedModel, resolved: Mapping[str, Any], node: Any
) -> Iterator[tuple[str, str, str]]:
    """Yield options of an objective that must equal a size of the teacher: option, message, valid value."""
    dims = model.spec.get("dims")
    if not isinstance(node, Mapping) or not isinstance(dims, Mapping):
        return
    entry = validator.index.entries["objective"].get(node["name"])
    for size, option in entry.traits.get("teacher", {}).items() if entry is not None else ():
        teacher_size, value = dims.get(size), node.get(option)
        if value is None and teacher_size != resolved["dims"].get(size):
            message = f"the teacher's `dims.{size}` is {teacher_size}, and the model's {resolved['dims'].get(size)}"
            yield option, message, f"{option}: {teacher_size}, and a projection to it is trained"
        elif value not in (None, teacher_size):
            yield option, f"expected the teacher's `dims.{size}` ({teacher_size}), got {value}", f"{teacher_size}"


def _same_tokens(validator: Validator, model: SavedModel, resolved: Mapping[str, Any], key: str) -> bool:
    """Return whether the tokenizers are equal by name and options; their fingerprints are compared later."""
    tokenizer, model_tokenizer = resolved.get("tokenizer"), model.spec.get("tokenizer")
    if not model.tokenizer and isinstance(tokenizer, Mapping) and not _reads_images(validator, tokenizer):
        message = f"the tokenizer of the saved model is unknown, so ids of {_options(tokenizer)} may mean other tokens"
        new = ", `vocabulary: new` to train new embeddings" if key == "from" else ""
        valid = f"a model converted with its tokenizer.json{new}, or `{key}.vocabulary: unchecked` if the ids are equal"
        validator.add_error("unknown-tokenizer", (key,), message, valid)
        return False
    same = not model.tokenizer or not isinstance(tokenizer, Mapping) or tokenizer == model_tokenizer
    if not same:
        name = model_tokenizer.get("name") if isinstance(model_tokenizer, Mapping) else model_tokenizer
        message = f"the saved model has the tokenizer `{name}`, got {_options(tokenizer)}: ids would mean other tokens"
        alternative = (
            "; or `from.vocabulary: new`, which keeps the embeddings of tokens that both have" if key == "from" else ""
        )
        validator.add_error(
            "other-tokenizer", ("tokenizer",), message, f"tokenizer {_options(model_tokenizer)}{alternative}"
        )
    return same


def _reads_images(validator: Validator, tokenizer: Mapping[str, Any]) -> bool:
    """Return whether ids of the tokenizer are values of pixels, which mean the same to all models."""
    entry = validator.index.entries["tokenizer"].get(tokenizer["name"])
    return entry is not None and entry.traits.get("modality") == "images"


def _options(node: Any) -> str:
    if not isinstance(node, Mapping):
        return f"`{node}`"
    options = {key: value for key, value in node.items() if key != "name"}
    return f"`{node.get('name')}`" + (f" with {options}" if options else "")
