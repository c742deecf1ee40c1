"""A saved model with some of its parts swapped, and the damage that this does before anything is trained."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final, NamedTuple, final

import torch

from paribus.assembly.cost import scores_the_vocabulary
from paribus.assembly.forward_pass import needs_teacher
from paribus.errors import Problem, SpecError, StoreError
from paribus.registry import Registry, installed
from paribus.specs import resolved
from paribus.storage.saved_model import SavedModel, read_model, reading, unbound
from paribus.train.assemble import build_data, build_model, load_corpus, load_model
from paribus.train.evaluate import evaluate
from paribus.train.model import Model
from paribus.train.token_store import EncodedCorpus
from paribus.train.tokenizer_state import TextCodec
from paribus.train.vocab_remap import RemappedTables, remap_tables
from paribus.train.warm_start import WeightTransfer, transfer_weights

UNKNOWN_TOKENIZER: Final = "which tokenizer the saved model reads is not known, so that ids may mean other tokens to it"

Spec = Mapping[str, Any]


@final
@dataclass(frozen=True)
class LossChange:
    """One metric on the same validation examples: of the saved model, of the adapted one, and of one begun afresh."""

    name: str
    before: float | None  # None: the saved model has no such objective
    after: float
    fresh: float

    def __str__(self) -> str:
        if self.before is None:
            return f"{self.name} {self.after:.3f}; from scratch {self.fresh:.3f}"
        change = self.after - self.before
        return f"{self.name} {self.before:.3f} -> {self.after:.3f} ({change:+.3f}); from scratch {self.fresh:.3f}"


@final
@dataclass(frozen=True)
class AdaptationReport:
    """What became of each tensor, and what it did to the model at step 0."""

    tensors: WeightTransfer
    damage: tuple[LossChange, ...]
    notes: tuple[str, ...] = field(default=())
    sha256: str = ""  # of the saved model that it began from, where that lies in a folder

    def to_json(self) -> dict[str, Any]:
        measured = {
            each.name: {"before": each.before, "after": each.after, "fresh": each.fresh} for each in self.damage
        }
        told = {**self.tensors.to_json(), "damage": measured, "notes": list(self.notes)}
        return {**told, "sha256": self.sha256} if self.sha256 else told


class AdaptedModel(NamedTuple):
    """A model that begins from another, and the report on it."""

    model: Model
    report: AdaptationReport


def adapt(
    source: Model | str | Path, overrides: Sequence[str] = (), *, registry: Registry | None = None
) -> AdaptedModel:
    """A saved model with some of its parts swapped, before any training, and the report on what that did to it.

    `source` is a model, or the folder of one: `model, report = paribus.adapt("runs/gpt", ["attention=gqa"])`. What
    fits is kept bitwise, what can be converted is, and the rest begins as the spec's seed says.
    """
    classes = registry or installed()
    original = source if isinstance(source, Model) else load_model(read_model(source), classes)
    spec = resolved({**unbound(original.spec), **_keeping(original)}, *overrides, registry=classes)
    text = load_corpus(spec, classes, kept=None if original.text is None else original.text.tokenizer.state())
    _same_tokenizer(original.tokenizer, text)
    model = build_model(spec, classes, text.vocabulary)
    model.to(next(original.parameters()).dtype)
    model.tokenizer = original.tokenizer
    model.text = TextCodec.of(text) if original.tokenizer else None
    model.flops = original.flops
    return AdaptedModel(model, start_from(model, original, classes, text))


def initial_model(
    spec: Spec, classes: Registry, text: EncodedCorpus, *, measured: bool
) -> tuple[Model, AdaptationReport | None]:
    """A spec's model as it begins: with its first values, or from the saved one that stands under `from:`."""
    model = build_model(spec, classes, text.vocabulary)
    model.tokenizer = text.tokenizer_fingerprint
    model.text = TextCodec.of(text)
    model.flops = 0
    if spec.get("teacher") is not None:
        model.set_teacher(_named(spec, "teacher", classes, text)[0])
    if not {"name", "sha256", "trial"} & set(spec.get("from") or {}):
        return model, None
    source, found = _named(spec, "from", classes, text)
    if measured:
        report = start_from(model, source, classes, text)
    else:
        report = AdaptationReport(transfer_weights(model, source, _recoded(model, source, classes, text)), ())
    report = replace(report, sha256=found.sha256)
    model.weight_transfer, model.source_sha256, model.flops = report.tensors, found.sha256, found.flops
    return model, report


def _keeping(original: Model) -> dict[str, Any]:
    """What an adapted model reads: the tokens of the original, whatever its corpus becomes."""
    return {"from": {"learned": reading(original.spec)}} if original.tokenizer else {}


def start_from(model: Model, source: Model, classes: Registry, text: EncodedCorpus) -> AdaptationReport:
    """Lets `model`, which has its first values, begin from `source`, and measures what that came to."""
    data = build_data(_within(model.spec, source.spec), classes, text)
    names = [name for name in model.evaluated if model.teacher is not None or not needs_teacher(model.objective(name))]
    ids = _recoded(model, source, classes, text)
    known = [name for name in names if ids is None and _measures(source, name, model)]
    fresh = evaluate(model, data, names)
    before = evaluate(source, data, known)
    tensors = transfer_weights(model, source, ids)
    after = evaluate(model, data, names)
    damage = tuple(LossChange(name, before.get(name), value, fresh[name]) for name, value in after.items())
    return AdaptationReport(tensors, damage, () if source.tokenizer else (UNKNOWN_TOKENIZER,))


def _recoded(model: Model, source: Model, classes: Registry, text: EncodedCorpus) -> RemappedTables | None:
    """What becomes of the tables, where the model has a vocabulary of its own."""
    if (model.spec.get("from") or {}).get("vocabulary") != "new":
        return None
    read = source.text or TextCodec.of(load_corpus(source.spec, classes))
    if source.tokenizer and source.tokenizer != read.fingerprint:
        what = "what the saved model's tokenizer learned is not known any more: its corpus has changed"
        raise SpecError(Problem(code="other-tokenizer", path="from", message=what, valid="a model saved with its text"))
    return remap_tables(model, source, text.tokenizer, read.tokenizer, classes)


def _measures(source: Model, name: str, model: Model) -> bool:
    """Whether the saved model can be measured with this objective: it has its head, for as many classes."""
    if name not in source.assembled.objectives or needs_teacher(source.objective(name)):
        return False
    whole = scores_the_vocabulary(source.objective(name), source.assembled)
    return whole or _classes(source, name) == _classes(model, name)


def _classes(model: Model, name: str) -> int:
    """How many things the head of an objective scores."""
    width = model.topology.stage("body").shape.width
    hidden = next(model.parameters()).new_zeros(1, 1, width)
    with torch.no_grad():
        return model.objective(name).logits(hidden, model.topology.embedding.unembed).shape[-1]


def _named(spec: Spec, key: str, classes: Registry, text: EncodedCorpus) -> tuple[Model, SavedModel]:
    """The saved model that a spec names, if it is still the one that it named, and reads the same tokens."""
    if "name" not in spec[key]:
        what = "this spec remembers the hash of a model, and not where it is"
        raise StoreError(Problem(code="no-record", path=key, message=what, valid=f"{key}=FOLDER"))
    found = read_model(spec[key]["name"])
    if "trial" in spec[key] and found.identity != spec[key]["trial"]:
        what = f"`{found.folder}` is not the trial {spec[key]['trial']}, from which this one begins"
        raise StoreError(Problem(code="other-trial", path=key, message=what, valid="`paribus run`, in order"))
    if "trial" not in spec[key] and found.sha256 != spec[key]["sha256"]:
        what = f"`{found.folder}` holds another model than when the spec was resolved"
        raise StoreError(Problem(code="changed", path=key, message=what, valid="the model of then, or a spec of now"))
    if spec[key].get("vocabulary") == "new":
        return load_model(found, classes), found
    _same_tokenizer(found.tokenizer, text)
    return load_model(found, classes, text.vocabulary if found.tokenizer else None), found


def _same_tokenizer(read: str, text: EncodedCorpus) -> None:
    """Refuses to read other tokens than the model was trained on: its rows would mean nothing."""
    if read and read != text.tokenizer_fingerprint:
        what = "the tokenizer is not the one that the saved model was trained with: an id would mean another token"
        valid = "the corpus and the tokenizer that it was trained with, or a tokenizer that learns nothing"
        raise SpecError(Problem(code="other-tokenizer", path="tokenizer", message=what, valid=valid))


def _within(spec: Spec, source: Spec) -> Spec:
    """The spec with examples no longer than either model can read."""
    length = min(spec["dims"]["length"], source["dims"]["length"])
    return {**spec, "dims": {**spec["dims"], "length": length}}
