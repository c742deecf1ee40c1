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
from paribus.specs.named_plugins import files_of_model, files_of_sources, files_of_spec, plugins_of_spec
from paribus.storage.atomic import FILES, Files, write_json
from paribus.storage.saved_model import MODEL, WEIGHTS, read_model

if TYPE_CHECKING:
    from omegaconf import DictConfig


def assemble(spec: DictConfig | Mapping[str, Any], *, registry: Registry | None = None) -> Model:
    """Return the LightningModule of a spec with its initial weights, for any Lightning `Trainer`.

    `model = paribus.assemble(paribus.spec("gpt-tiny", "position=rope"))`. A spec with `corpus: null` reads no data:
    `model.batch(tokens)` makes batches of your own tensors.
    """
    classes = _with_named_plugins(spec, registry)
    plain = resolved(spec, registry=classes, optional=("corpus",))
    if plain["corpus"] is None:
        return model_without_corpus(plain, classes)
    text = load_corpus(plain, classes)
    return initial_model(plain, classes, text, measured=False)[0]


def data(spec: DictConfig | Mapping[str, Any], *, registry: Registry | None = None) -> Data:
    """Return the LightningDataModule of a spec: examples of its corpus, as its objectives form and corrupt them.

    `Trainer(max_steps=200).fit(paribus.assemble(spec), paribus.data(spec))`
    """
    classes = _with_named_plugins(spec, registry)
    plain = resolved(spec, registry=classes)
    return build_data(plain, classes, load_corpus(plain, classes))


def save(model: Model, folder: str | Path, *, registry: Registry | None = None, files: Files = FILES) -> None:
    """Write a model to a folder as a spec, weights and tokenizer, for `paribus.load(folder)`.

    With the `registry` of its components, the folder also names the plugin files of these, which `load` then finds.
    """
    path = Path(folder)
    path.mkdir(parents=True, exist_ok=True)
    save_weights(path / WEIGHTS, model, {}, files=files)
    write_text(path, model.text, files=files)
    spec = write_tokenizer_json(path, model.spec, model.text, files=files)
    document = {"spec": spec, "dtype": _dtype_name(model), "tokenizer": model.tokenizer, "flops": model.flops}
    plugins = {} if registry is None else plugins_of_spec(model.spec, registry.index)
    write_json(path / MODEL, {**document, **({"plugins": plugins} if plugins else {})}, files=files)


def load(trial: str | Path, *, registry: Registry | None = None) -> Model:
    """Load a trained model from the folder of a trial, as `paribus status` shows it, or one that `save` wrote.

    A plugin file that it was trained with is loaded, too, if its code is still the same.
    """
    saved = read_model(trial)
    classes = registry or installed()
    return load_model(saved, classes.with_plugins(files_of_model(saved, classes.index)))


def _with_named_plugins(spec: DictConfig | Mapping[str, Any], registry: Registry | None) -> Registry:
    """Return a registry with the plugin files that a spec names."""
    classes = registry or installed()
    return classes.with_plugins((*files_of_spec(spec, classes.index), *files_of_sources(spec, (), classes.index)))


def _dtype_name(model: Model) -> str:
    return str(next(model.parameters()).dtype).removeprefix("torch.")
