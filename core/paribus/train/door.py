"""The public ways to a model: from a spec, with its data, or trained and back again."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from paribus.durable import FILES, Files, read_json, write_json
from paribus.errors import Problem, StoreError
from paribus.registry import Registry, installed
from paribus.specs import resolved
from paribus.train.assemble import assembled, data_of, known_vocabulary, text_of
from paribus.train.checkpoint import load_weights, save_weights
from paribus.train.data import Data
from paribus.train.model import Model
from paribus.train.trial import RECORD, WEIGHTS

SPEC: Final = "model.json"

if TYPE_CHECKING:
    from omegaconf import DictConfig


def assemble(spec: DictConfig | Mapping[str, Any], *, registry: Registry | None = None) -> Model:
    """A LightningModule of a spec, with its first values: it works in anybody's Trainer.

    `model = paribus.assemble(paribus.spec("gpt-tiny", "position=rope"))`
    """
    classes = registry or installed()
    plain = resolved(spec, registry=classes)
    return assembled(plain, classes, text_of(plain, classes).vocabulary)


def data(spec: DictConfig | Mapping[str, Any], *, registry: Registry | None = None) -> Data:
    """The LightningDataModule of a spec: its corpus as its objectives form and corrupt it.

    `Trainer(max_steps=200).fit(paribus.assemble(spec), paribus.data(spec))`
    """
    classes = registry or installed()
    plain = resolved(spec, registry=classes)
    return data_of(plain, classes, text_of(plain, classes))


def save(model: Model, folder: str | Path, *, files: Files = FILES) -> None:
    """Writes a model as a spec and its weights; `paribus.load(folder)` is the way back."""
    place = Path(folder)
    place.mkdir(parents=True, exist_ok=True)
    save_weights(place / WEIGHTS, model, {}, files=files)
    write_json(place / SPEC, {"spec": model.spec, "dtype": _name(model)}, files=files)


def load(trial: str | Path, *, registry: Registry | None = None) -> Model:
    """A trained model, back: `trial` is a trial's folder, as `paribus status` shows it, or one that `save` wrote."""
    folder = Path(trial)
    if (folder / SPEC).is_file():
        return _saved(folder, registry or installed())
    if not (folder / RECORD).is_file():
        what = "there is no record here, so this is no trial that has ended"
        valid = "a folder like runs/STUDY/HASH, or one that `paribus convert` wrote"
        raise StoreError(Problem(code="no-record", where=str(folder), what=what, valid=valid))
    record = read_json(folder / RECORD)
    if not (folder / WEIGHTS).is_file():
        what = f"this trial has no weights: it {record['result']['state']}"
        raise StoreError(Problem(code="no-weights", where=str(folder), what=what, valid="a trial that is done"))
    model = assemble(record["spec"], registry=registry)
    load_weights(folder / WEIGHTS, model)
    return model


def _saved(folder: Path, classes: Registry) -> Model:
    saved = read_json(folder / SPEC)
    spec = resolved(saved["spec"], registry=classes)
    model = assembled(spec, classes, known_vocabulary(spec, classes))
    if saved["dtype"] == "float64":
        model.double()
    load_weights(folder / WEIGHTS, model)
    return model


def _name(model: Model) -> str:
    return str(next(model.parameters()).dtype).removeprefix("torch.")
