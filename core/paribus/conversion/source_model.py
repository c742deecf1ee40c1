"""A model that is written elsewhere: a configuration, a class and tensors, in memory or in a folder."""

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
from paribus.storage.saved_model import PICKLES

CONFIG: Final = "config.json"
WEIGHTS: Final = "model.safetensors"
INDEX: Final = "model.safetensors.index.json"


@final
@dataclass(frozen=True)
class SourceModel:
    """What `convert` reads, and what `export` makes."""

    config: Mapping[str, Any]
    architecture: str
    tensors: Mapping[str, Tensor]

    def save(self, folder: str | Path, *, files: Files = FILES) -> None:
        """Writes `config.json` and `model.safetensors`, each tensor once, as the library it is for reads them."""
        place = Path(folder)
        place.mkdir(parents=True, exist_ok=True)
        first: dict[int, str] = {}
        held = {name: tensor for name, tensor in self.tensors.items() if first.setdefault(id(tensor), name) == name}
        write_bytes(place / WEIGHTS, safetensors.torch.save(held, {"format": "pt"}), files=files)
        text = json.dumps(self.config, indent=2, sort_keys=True, ensure_ascii=False) + "\n"
        write_bytes(place / CONFIG, text.encode(), files=files)


def read_source(source: Any) -> SourceModel:
    """A model in memory, with `config` and `state_dict`, or a folder with `config.json` and safetensors."""
    if isinstance(source, SourceModel):
        return source
    if isinstance(source, (str, Path)):
        return _folder(Path(source))
    if not hasattr(source, "state_dict") or not hasattr(source, "config"):
        what = f"a {type(source).__name__} is no model of a library that is known here"
        raise StoreError(
            Problem(code="no-model", message=what, valid="a folder with config.json, or a model in memory")
        )
    return SourceModel(source.config.to_dict(), type(source).__name__, source.state_dict())


def _folder(folder: Path) -> SourceModel:
    if not (folder / CONFIG).is_file():
        what = f"there is no `{CONFIG}` here"
        raise _wrong("no-model", folder, what, "a folder as `save_pretrained` writes it")
    config = _document(folder / CONFIG)
    if not isinstance(config, dict):
        raise _wrong(
            "no-model", folder / CONFIG, f"a configuration is a mapping, and this is a {type(config).__name__}"
        )
    architectures = config.get("architectures")
    if not isinstance(architectures, list) or len(architectures) != 1 or not isinstance(architectures[0], str):
        what = f"`architectures` is {architectures!r}, so it is not known which heads the model has"
        raise _wrong("no-model", folder / CONFIG, what, 'a list of one class, such as ["GPT2LMHeadModel"]')
    return SourceModel(config, architectures[0], _tensors(folder))


def _tensors(folder: Path) -> dict[str, Tensor]:
    """All tensors of a folder, in one file or in the pieces that an index names."""
    names = [WEIGHTS]
    if (folder / INDEX).is_file():
        index = _document(folder / INDEX)
        where = index.get("weight_map") if isinstance(index, dict) else None
        if not isinstance(where, dict) or not all(isinstance(name, str) for name in where.values()):
            raise _wrong("damaged", folder / INDEX, "it does not say which file has which tensor")
        names = sorted(set(where.values()))
    elif not (folder / WEIGHTS).is_file():
        pickled = [name for name in PICKLES if (folder / name).exists()]
        if pickled:
            what = f"its weights are a pickle, `{pickled[0]}`, which may run code when it is opened: it was not"
            raise _wrong("pickle", folder, what, "safetensors: load it where you trust it, `save_pretrained` it again")
        raise _wrong("no-weights", folder, f"there is no `{WEIGHTS}` here")
    found: dict[str, Tensor] = {}
    for name in names:
        if Path(name).name != name or not (folder / name).is_file():
            raise _wrong("no-weights", folder, f"there is no `{name}` here, which the index names")
        try:
            found.update(safetensors.torch.load(read_bytes(folder / name)))
        except (SafetensorError, ValueError) as error:
            raise _wrong("damaged", folder / name, str(error)) from error
    return found


def _document(path: Path) -> Any:
    try:
        return parse_json(read_bytes(path))
    except ValueError as error:
        raise _wrong("damaged", path, f"this is no JSON: {error}") from error


def _wrong(code: str, where: Path, what: str, valid: str = "") -> StoreError:
    return StoreError(Problem(code=code, location=str(where), message=what, valid=valid))
