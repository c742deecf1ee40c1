"""Folders of saved models: find and describe them without torch and without reading tensors."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, final

from paribus.errors import Problem, StoreError, join_names
from paribus.storage.atomic import damaged_error, digest_json, parse_json, read_json

MODEL: Final = "model.json"
RECORD: Final = "record.json"
TRIAL: Final = "trial.json"
WEIGHTS: Final = "weights.safetensors"
TEXT: Final = "text.json"
TOKENIZER: Final = "tokenizer.json"  # of the tokenizer `file`; its path in the saved spec is relative to the folder
PICKLES: Final = ("pytorch_model.bin", "pytorch_model.bin.index.json", "model.pt", "model.pth", "model.ckpt")
RUNS: Final = Path("runs")  # default store
SEAL: Final = b'"sha256":"'  # a key of the header; within a string its quotes would be escaped

_IDENTITY: Final = re.compile(r"[0-9a-f]{4,24}")  # of a trial, or its first digits
_SEALED: Final = re.compile(re.escape(SEAL) + rb"([0-9a-f]{64})\"")
_TRAINED_DTYPES: Final = {
    "bf16-true": "bfloat16", "16-true": "float16", "64-true": "float64", "64": "float64"
}  # by precision of the trainer  # fmt: skip
_DTYPES: Final = frozenset({"float32", *_TRAINED_DTYPES.values()})
_MAX_BYTES: Final = 100_000_000  # bytes; limit of safetensors
_VALID: Final = (
    "a folder like runs/STUDY/HASH, a HASH of `paribus status`, "
    "or what `paribus train --save`, `adapt` or `convert` wrote"
)


@final
@dataclass(frozen=True)
class SavedModel:
    """Model on disk, of a trial or written by `paribus.save`."""

    folder: Path
    spec: Mapping[str, Any]
    dtype: str
    tokenizer: str  # its fingerprint; empty if unknown, as for Hugging Face models
    is_trial: bool
    seal: str  # hash in the header of the weights, checked when they are read
    identity: str = ""  # of a trial
    flops: int | None = None  # of its training, its parents included; None: unknown
    plugins: Mapping[str, Mapping[str, str]] = field(default_factory=dict)  # of its components, as slot.name

    @property
    def weights(self) -> Path:
        return self.folder / WEIGHTS

    @property
    def sha256(self) -> str:
        """Hash of the content of the folder, whatever its path."""
        spec = self.spec
        if _tokenizer_path(spec) == str(self.folder / TOKENIZER):
            spec = with_tokenizer_path(spec, TOKENIZER)
        return digest_json([dict(spec), self.dtype, self.tokenizer, self.seal])


def trained_dtype(spec: Any) -> str:
    """Return the type of the weights that a trial saved."""
    trainer = spec.get("trainer") if isinstance(spec, dict) else None
    precision = trainer.get("precision") if isinstance(trainer, dict) else None
    return _TRAINED_DTYPES.get(str(precision), "float32")


def find_model(name: str | Path, store: Path = RUNS) -> Path:
    """Return the folder of a model: the path itself, or the trial in `store` whose identity starts with `name`."""
    place = Path(name)
    if not _IDENTITY.fullmatch(str(name)) or os.path.lexists(place):
        return place
    folders = sorted(folder for folder in store.glob(f"*/{name}*") if (folder / RECORD).is_file())
    if len({folder.name for folder in folders}) > 1:
        message = f"{len(folders)} trials in `{store}` have identities that start like this"
        raise _problem("ambiguous", place, message, join_names((str(folder) for folder in folders), 6))
    return folders[0] if folders else place


def read_model(folder: str | Path) -> SavedModel:
    """Return the model of a folder or of a trial's identity, or raise an error that describes the folder.

    An identity, or its first digits, is searched for in `runs`, the default store.
    """
    place = find_model(folder)
    try:
        is_trial = not (place / MODEL).is_file()
        if is_trial and not (place / RECORD).is_file():
            raise _no_model(place)
    except (OSError, ValueError) as error:  # ValueError: a NUL in the path
        raise _problem("cannot-read", place, f"expected a folder: {error}") from None
    document = read_json(place / (RECORD if is_trial else MODEL))
    result = document.get("result") if is_trial else None
    if is_trial and not (place / WEIGHTS).is_file():
        if "program" in (document.get("spec") or {}):
            message = f"this is a trial of a program, whose files are in {place / 'work'}"
            raise _problem("missing-weights", place, message, "a trial of a spec")
        state = f"; its state is {result.get('state')}" if isinstance(result, dict) else ""
        raise _problem("missing-weights", place, f"this trial has no weights{state}", "a trial that is done")
    if not (place / WEIGHTS).is_file():
        raise _problem("missing-weights", place, f"missing `{WEIGHTS}` in this folder", _VALID)
    data = result.get("data") if isinstance(result, dict) else None
    tokenizer = data.get("tokenizer", "") if isinstance(data, dict) else document.get("tokenizer", "")
    spec = document.get("spec")
    dtype = trained_dtype(spec) if is_trial else document.get("dtype", "float32")
    if not isinstance(spec, dict) or dtype not in _DTYPES or not isinstance(tokenizer, str):
        raise damaged_error(place, "its spec, dtype or tokenizer is missing or of a wrong type")
    if not is_trial and _tokenizer_path(spec) == TOKENIZER and (place / TOKENIZER).is_file():
        spec = with_tokenizer_path(spec, str(place / TOKENIZER))
    identity = str(document.get("identity", "")) if is_trial else ""
    flops = result.get("total_flops") if isinstance(result, dict) else document.get("flops")
    flop_count = flops if isinstance(flops, int) and not isinstance(flops, bool) and flops >= 0 else None
    plugins = _plugins(place, document, is_trial)
    return SavedModel(place, spec, dtype, tokenizer, is_trial, _seal(place / WEIGHTS), identity, flop_count, plugins)


def _plugins(place: Path, document: Mapping[str, Any], is_trial: bool) -> Mapping[str, Mapping[str, str]]:
    """Return the plugins that a model was made with; models of earlier versions do not tell."""
    if is_trial:
        try:
            document = read_json(place / TRIAL)
        except StoreError:
            return {}
    return recorded_plugins(document)


def recorded_plugins(document: Mapping[str, Any]) -> dict[str, Mapping[str, str]]:
    """Return the plugins that a trial or a saved model was made with, by component, without malformed ones."""
    plugins = document.get("plugins")
    return {
        str(component): plugin
        for component, plugin in (plugins.items() if isinstance(plugins, dict) else ())
        if isinstance(plugin, dict)
        and all(isinstance(value, str) for value in plugin.values())
        and ("distribution" in plugin or Path(plugin.get("file", "")).is_absolute())
    }


def unbound(spec: Mapping[str, Any]) -> dict[str, Any]:
    """Return the spec of a trained model, without its initial model and the path of its teacher.

    The source of its tokenizer is retained if that is another corpus than its own.
    """
    teacher, start = spec.get("teacher"), spec.get("from")
    hashed = {"sha256": teacher.get("sha256", "")} if isinstance(teacher, Mapping) else None
    tokenizer_source = start.get("learned") if isinstance(start, Mapping) else None
    return {**spec, "from": {"learned": tokenizer_source} if tokenizer_source else None, "teacher": hashed}


def reading(spec: Mapping[str, Any]) -> dict[str, Any]:
    """Return the source of the tokenizer of a spec: its own corpus, or that of its initial model."""
    began = spec.get("from")
    learned = began.get("learned") if isinstance(began, Mapping) else None
    if learned:
        return dict(learned)
    dims = spec.get("dims")
    vocabulary = dims.get("vocabulary") if isinstance(dims, Mapping) else None
    return {"corpus": spec.get("corpus"), "tokenizer": spec.get("tokenizer"), "vocabulary": vocabulary}


def with_tokenizer_path(spec: Mapping[str, Any], path: str) -> dict[str, Any]:
    """Return the spec with another path of its tokenizer's file."""
    return {**spec, "tokenizer": {**spec["tokenizer"], "path": path}}


def _tokenizer_path(spec: Mapping[str, Any]) -> Any:
    tokenizer = spec.get("tokenizer")
    return tokenizer.get("path") if isinstance(tokenizer, Mapping) else None


def _seal(path: Path) -> str:
    """Return the hash in a file's header; checks the length of the file, and leaves its content to the reader."""
    try:
        with path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            header = file.read(length) if length <= _MAX_BYTES else b""
        size = path.stat().st_size
    except OSError as error:
        raise _problem("cannot-read", path, f"this file could not be read: {error.strerror or error}") from error
    match = _SEALED.search(header)
    if match is None:
        raise damaged_error(path, "it has no hash")
    try:
        described: Any = parse_json(header)
        ends = [0, *(int(about["data_offsets"][1]) for name, about in described.items() if name != "__metadata__")]
    except (ValueError, TypeError, LookupError) as error:
        raise damaged_error(path, f"its header cannot be read: {error}") from error
    if size != 8 + length + max(ends):
        raise damaged_error(path, f"it has {size:,} bytes, but its header specifies {8 + length + max(ends):,}")
    return match[1].decode()


def _no_model(place: Path) -> StoreError:
    """Return the error for a folder without a model: its content, and what to do."""
    if not place.exists():
        return _problem("missing-record", place, "this folder does not exist", _VALID)
    if not place.is_dir():
        return _problem("missing-record", place, "expected a folder with a model, got a file", _VALID)
    if (place / "config.json").is_file():
        message = "this is a model of another library"
        return _problem("missing-record", place, message, f"`paribus convert {place} -o ours` converts it")
    pickled = next((name for name in PICKLES if (place / name).exists()), None)
    if pickled:
        message = f"its weights are a pickle, `{pickled}`, which may run code, so it was not opened"
        return _problem("pickle", place, message, _VALID)
    message = "this folder has no record, so it is not a trial that has ended"
    return _problem("missing-record", place, message, _VALID)


def _problem(code: str, path: Path, message: str, valid: str = "") -> StoreError:
    return StoreError(Problem(code=code, location=str(path), message=message, valid=valid))
