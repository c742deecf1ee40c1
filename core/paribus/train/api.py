"""Public functions of training: assemble a model and its data from a spec, and save and load models."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paribus.datamodule.data import Data
from paribus.datamodule.tokenizer_state import write_text, write_tokenizer_json
from paribus.models.adapt import initial_model
from paribus.models.assemble import build_data, load_corpus, load_model, model_without_corpus
from paribus.models.checkpoint import save_weights
from paribus.models.lightning_module import Model
from paribus.registry import Registry, installed
from paribus.specs import resolved
from paribus.storage.atomic import FILES, Files, write_json
from paribus.storage.saved_model import MODEL, WEIGHTS, read_model

if TYPE_CHECKING:
    from omegaconf import DictConfig


def assemble(spec: DictConfig | Mapping[str, Any], *, registry: Registry | None = None) -> Model:
    """Return the LightningModule of a spec with its initial weights, for any Lightning `Trainer`.

    `model = paribus.assemble(paribus.spec("gpt-tiny", "position=rope"))`. A spec with `corpus: null` reads no data:
    `model.batch(tokens)` makes batches of your own tensors.
    """
    classes = registry or installed()
    plain = resolved(spec, registry=classes, optional=("corpus",))
    if plain["corpus"] is None:
        return model_without_corpus(plain, classes)
    text = load_corpus(plain, classes)
    return initial_model(plain, classes, text, measured=False)[0]


def data(spec: DictConfig | Mapping[str, Any], *, registry: Registry | None = None) -> Data:
    """Return the LightningDataModule of a spec: examples of its corpus, as its objectives form and corrupt them.

    `Trainer(max_steps=200).fit(paribus.assemble(spec), paribus.data(spec))`
    """
    classes = registry or installed()
    plain = resolved(spec, registry=classes)
    return build_data(plain, classes, load_corpus(plain, classes))


def save(model: Model, folder: str | Path, *, files: Files = FILES) -> None:
    """Write a model to a folder as a spec, weights and tokenizer, for `paribus.load(folder)`."""
    path = Path(folder)
    path.mkdir(parents=True, exist_ok=True)
    save_weights(path / WEIGHTS, model, {}, files=files)
    write_text(path, model.text, files=files)
    spec = write_tokenizer_json(path, model.spec, model.text, files=files)
    document = {"spec": spec, "dtype": _dtype_name(model), "tokenizer": model.tokenizer, "flops": model.flops}
    write_json(path / MODEL, document, files=files)


def load(trial: str | Path, *, registry: Registry | None = None) -> Model:
    """Load a trained model from the folder of a trial, as `paribus status` shows it, or one that `save` wrote."""
    return load_model(read_model(trial), registry or installed())


def _dtype_name(model: Model) -> str:
    return str(next(model.parameters()).dtype).removeprefix("torch.")
