"""Hugging Face model: configuration, class and tensors, in memory or in a folder."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, final

import safetensors.torch
from safetensors import SafetensorError
from torch import Tensor

from paribus.errors import Problem, StoreError
from paribus.storage.atomic import FILES, Files, parse_json, read_bytes, write_bytes
from paribus.storage.saved_model import PICKLES, TOKENIZER

CONFIG: Final = "config.json"
WEIGHTS: Final = "model.safetensors"
INDEX: Final = "model.safetensors.index.json"
GENERATION_CONFIG: Final = "generation_config.json"
TOKENIZER_CONFIG: Final = "tokenizer_config.json"
TOKENIZER_SETTINGS: Final = ("special_tokens_map.json", TOKENIZER_CONFIG)  # the later one takes precedence
ROLES: Final = ("pad", "unk", "cls", "sep", "mask", "bos", "eos")


@final
@dataclass(frozen=True)
class SourceTokenizer:
    """Fast tokenizer: the content of `tokenizer.json`, and its settings, which name the special tokens."""

    text: str
    settings: Mapping[str, Any]
    path: Path | None = None  # None: in memory

    @property
    def specials(self) -> dict[str, str]:
        """Special tokens by role. A token that the file does not add to its model may occur in text, so it is none."""
        added = {token["content"] for token in json.loads(self.text).get("added_tokens") or ()}
        tokens = {role: self.settings.get(f"{role}_token") for role in ROLES}
        names = {role: token.get("content") if isinstance(token, Mapping) else token for role, token in tokens.items()}
        return {role: name for role, name in names.items() if isinstance(name, str) and name in added}


@final
@dataclass(frozen=True)
class SourceModel:
    """Input of `convert` and output of `export`."""

    config: Mapping[str, Any]
    architecture: str
    tensors: Mapping[str, Tensor]
    tokenizer: SourceTokenizer | None = None  # None: unknown
    generation: Mapping[str, Any] | None = None  # `generation_config.json`, of an export
    missing_tokenizer: str = ""  # reason why an exported model of text has none

    def save(self, folder: str | Path, *, files: Files = FILES) -> None:
        """Write `config.json`, `model.safetensors`, the tokenizer and `generation_config.json`, for `from_pretrained`.

        Without a tokenizer, `tokenizer_config.json` makes `AutoTokenizer` raise an error; otherwise it would return an
        empty tokenizer.
        """
        path = Path(folder)
        path.mkdir(parents=True, exist_ok=True)
        first_names: dict[int, str] = {}
        unique_tensors = {
            name: tensor for name, tensor in self.tensors.items() if first_names.setdefault(id(tensor), name) == name
        }
        write_bytes(path / WEIGHTS, safetensors.torch.save(unique_tensors, {"format": "pt"}), files=files)
        if self.tokenizer is not None:
            write_bytes(path / TOKENIZER, self.tokenizer.text.encode(), files=files)
            write_bytes(path / TOKENIZER_CONFIG, _json_text(self.tokenizer.settings), files=files)
        elif self.missing_tokenizer:
            write_bytes(
                path / TOKENIZER_CONFIG, _json_text({"tokenizer_class": "PreTrainedTokenizerFast"}), files=files
            )
        if self.generation is not None:
            write_bytes(path / GENERATION_CONFIG, _json_text(self.generation), files=files)
        write_bytes(path / CONFIG, _json_text(self.config), files=files)


def _json_text(document: Mapping[str, Any]) -> bytes:
    return (json.dumps(document, indent=2, sort_keys=True, ensure_ascii=False) + "\n").encode()


def read_source(source: Any) -> SourceModel:
    """Read a model in memory, with `config` and `state_dict`, or a folder with `config.json` and safetensors."""
    if isinstance(source, SourceModel):
        return source
    if isinstance(source, (str, Path)):
        return _folder(Path(source))
    if not hasattr(source, "state_dict") or not hasattr(source, "config"):
        message = f"a {type(source).__name__} is not a supported model"
        raise StoreError(
            Problem(code="missing-model", message=message, valid="a folder with config.json, or a model in memory")
        )
    return SourceModel(source.config.to_dict(), type(source).__name__, source.state_dict())


def _folder(folder: Path) -> SourceModel:
    if not (folder / CONFIG).is_file():
        message = f"expected a file `{CONFIG}`"
        raise _wrong("missing-model", folder, message, "a folder as `save_pretrained` writes it")
    config = _document(folder / CONFIG)
    if not isinstance(config, dict):
        raise _wrong("missing-model", folder / CONFIG, f"expected a mapping, got a {type(config).__name__}")
    architectures = config.get("architectures")
    if not isinstance(architectures, list) or len(architectures) != 1 or not isinstance(architectures[0], str):
        message = f"`architectures` is {architectures!r}, expected the name of one class"
        raise _wrong("missing-model", folder / CONFIG, message, 'a list of one class, such as ["GPT2LMHeadModel"]')
    return SourceModel(config, architectures[0], _tensors(folder), _tokenizer(folder))


def _tokenizer(folder: Path) -> SourceTokenizer | None:
    """Read the fast tokenizer of a folder."""
    path = folder / TOKENIZER
    if not path.is_file():
        return None
    if not isinstance(_document(path), dict):
        raise _wrong("damaged", path, "expected a mapping, as `save_pretrained` of a fast tokenizer writes it")
    settings: dict[str, Any] = {}
    for name in TOKENIZER_SETTINGS:
        document = _document(folder / name) if (folder / name).is_file() else {}
        if not isinstance(document, dict):
            raise _wrong("damaged", folder / name, f"expected a mapping, got a {type(document).__name__}")
        settings |= document
    return SourceTokenizer(read_bytes(path).decode(), settings, path)


def _tensors(folder: Path) -> dict[str, Tensor]:
    """Read all tensors of a folder, from one file or from the shards of an index."""
    names = [WEIGHTS]
    if (folder / INDEX).is_file():
        index = _document(folder / INDEX)
        weight_map = index.get("weight_map") if isinstance(index, dict) else None
        if not isinstance(weight_map, dict) or not all(isinstance(name, str) for name in weight_map.values()):
            raise _wrong("damaged", folder / INDEX, "expected a `weight_map` from tensors to files")
        names = sorted(set(weight_map.values()))
    elif not (folder / WEIGHTS).is_file():
        pickled = [name for name in PICKLES if (folder / name).exists()]
        if pickled:
            message = f"its weights are a pickle, `{pickled[0]}`, which can run code when it is loaded"
            raise _wrong(
                "pickle", folder, message, "safetensors: load it in a safe environment and `save_pretrained` it again"
            )
        raise _wrong("missing-weights", folder, f"expected a file `{WEIGHTS}`")
    tensors: dict[str, Tensor] = {}
    for name in names:
        if Path(name).name != name or not (folder / name).is_file():
            raise _wrong("missing-weights", folder, f"expected a file `{name}`, which the index names")
        try:
            tensors.update(safetensors.torch.load(read_bytes(folder / name)))
        except (SafetensorError, ValueError) as error:
            raise _wrong("damaged", folder / name, str(error)) from error
    return tensors


def _document(path: Path) -> Any:
    try:
        return parse_json(read_bytes(path))
    except ValueError as error:
        raise _wrong("damaged", path, f"invalid JSON: {error}") from error


def _wrong(code: str, location: Path, message: str, valid: str = "") -> StoreError:
    return StoreError(Problem(code=code, location=str(location), message=message, valid=valid))
