"""The public ways to a model: from a spec, with its data, or trained and back again.

A saved model, back in memory.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paribus.registry import Registry, installed
from paribus.specs import resolved
from paribus.storage.atomic import FILES, Files, write_json
from paribus.storage.saved_model import MODEL, WEIGHTS, read_model
from paribus.train.adapt import initial_model
from paribus.train.assemble import build_data, load_corpus, load_model
from paribus.train.checkpoint import save_weights
from paribus.train.data import Data
from paribus.train.model import Model
from paribus.train.tokenizer_state import write_text

if TYPE_CHECKING:
    from omegaconf import DictConfig


def assemble(spec: DictConfig | Mapping[str, Any], *, registry: Registry | None = None) -> Model:
    """A LightningModule of a spec, with its first values: it works in anybody's Trainer.

    `model = paribus.assemble(paribus.spec("gpt-tiny", "position=rope"))`
    """
    classes = registry or installed()
    plain = resolved(spec, registry=classes)
    text = load_corpus(plain, classes)
    return initial_model(plain, classes, text, measured=False)[0]


def data(spec: DictConfig | Mapping[str, Any], *, registry: Registry | None = None) -> Data:
    """The LightningDataModule of a spec: its corpus as its objectives form and corrupt it.

    `Trainer(max_steps=200).fit(paribus.assemble(spec), paribus.data(spec))`
    """
    classes = registry or installed()
    plain = resolved(spec, registry=classes)
    return build_data(plain, classes, load_corpus(plain, classes))


def save(model: Model, folder: str | Path, *, files: Files = FILES) -> None:
    """Writes a model as a spec, its weights and its tokenizer; `paribus.load(folder)` is the way back."""
    place = Path(folder)
    place.mkdir(parents=True, exist_ok=True)
    save_weights(place / WEIGHTS, model, {}, files=files)
    write_text(place, model.text, files=files)
    document = {"spec": model.spec, "dtype": _name(model), "tokenizer": model.tokenizer, "flops": model.flops}
    write_json(place / MODEL, document, files=files)


def load(trial: str | Path, *, registry: Registry | None = None) -> Model:
    """A trained model, back: `trial` is a trial's folder, as `paribus status` shows it, or one that `save` wrote."""
    return load_model(read_model(trial), registry or installed())


def _name(model: Model) -> str:
    return str(next(model.parameters()).dtype).removeprefix("torch.")
