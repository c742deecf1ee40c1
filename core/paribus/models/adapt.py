"""Adaptation: a saved model with some components swapped, and the change of its losses before any training."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final, NamedTuple, final

import torch

from paribus.assembly.cost import scores_the_vocabulary
from paribus.assembly.forward_pass import needs_teacher
from paribus.datamodule.token_store import EncodedCorpus
from paribus.datamodule.tokenizer_state import TextCodec
from paribus.errors import Problem, SpecError, StoreError
from paribus.models.assemble import build_data, build_model, load_corpus, load_model
from paribus.models.evaluate import evaluate
from paribus.models.lightning_module import Model
from paribus.models.warm_start import (
    RemappedTables,
    WeightTransfer,
    remap_tables,
    transfer_weights,
    vocabulary_tensors,
)
from paribus.registry import Registry, installed
from paribus.specs import resolved
from paribus.storage.saved_model import SavedModel, read_model, reading, unbound

UNKNOWN_TOKENIZER: Final = "the tokenizer of the saved model is unknown, so its ids may stand for other tokens"

Spec = Mapping[str, Any]


@final
@dataclass(frozen=True)
class LossChange:
    """One metric on the same validation examples: of the saved model, the adapted one, and one trained from scratch."""

    name: str
    before: float | None  # None: the saved model lacks this objective
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
    """Transfer of each tensor, and the loss changes at step 0."""

    tensors: WeightTransfer
    loss_changes: tuple[LossChange, ...]
    notes: tuple[str, ...] = field(default=())
    sha256: str = ""  # of the saved model, if it was read from a folder

    def to_json(self) -> dict[str, Any]:
        losses = {
            change.name: {"before": change.before, "after": change.after, "fresh": change.fresh}
            for change in self.loss_changes
        }
        document = {**self.tensors.to_json(), "loss_changes": losses, "notes": list(self.notes)}
        return {**document, "sha256": self.sha256} if self.sha256 else document


class AdaptedModel(NamedTuple):
    """Adapted model and its report."""

    model: Model
    report: AdaptationReport


def adapt(source: Model | str | Path, *overrides: str, registry: Registry | None = None) -> AdaptedModel:
    """Swap components of a saved model; return the model before any training, and a report.

    `source` is a model, or the folder of one: `model, report = paribus.adapt("runs/gpt", "attention=gqa")`. Tensors
    that fit are kept bitwise, others are converted where possible, and the rest are drawn from the spec's seed.
    """
    classes = registry or installed()
    original = source if isinstance(source, Model) else load_model(read_model(source), classes)
    spec = resolved({**unbound(original.spec), **_tokenizer_source(original)}, *overrides, registry=classes)
    text = load_corpus(spec, classes, saved_state=None if original.text is None else original.text.tokenizer.state())
    _check_tokenizer(original.tokenizer, text)
    model = build_model(spec, classes, text.vocabulary)
    model.to(next(original.parameters()).dtype)
    model.tokenizer = original.tokenizer
    model.text = TextCodec.of(text) if original.tokenizer else None
    model.flops = original.flops
    return AdaptedModel(model, start_from(model, original, classes, text))


def initial_model(
    spec: Spec, classes: Registry, text: EncodedCorpus, *, measured: bool
) -> tuple[Model, AdaptationReport | None]:
    """Return the model of a spec with its initial weights: drawn, or from the saved model under `from:`."""
    model = build_model(spec, classes, text.vocabulary)
    model.tokenizer = text.tokenizer_fingerprint
    model.text = TextCodec.of(text)
    model.flops = 0
    if spec.get("teacher") is not None:
        model.set_teacher(_load_source(spec, "teacher", classes, text)[0])
    if not {"name", "sha256", "trial"} & set(spec.get("from") or {}):
        return model, None
    source, saved_model = _load_source(spec, "from", classes, text)
    if measured:
        report = start_from(model, source, classes, text)
    else:
        report = AdaptationReport(transfer_weights(model, source, _remapped_tables(model, source, classes, text)), ())
    report = replace(report, sha256=saved_model.sha256)
    model.transferred_tensors, model.source_sha256 = report.tensors.conversions, saved_model.sha256
    model.flops = saved_model.flops
    return model, report


def _tokenizer_source(original: Model) -> dict[str, Any]:
    """Return the key that keeps the tokenizer of the original, whatever its corpus is."""
    return {"from": {"learned": reading(original.spec)}} if original.tokenizer else {}


def start_from(model: Model, source: Model, classes: Registry, text: EncodedCorpus) -> AdaptationReport:
    """Copy the weights of `source` into an initialized model, and evaluate both before and after."""
    data = build_data(_with_common_length(model.spec, source.spec), classes, text)
    names = [name for name in model.evaluated if model.teacher is not None or not needs_teacher(model.objective(name))]
    remapped = _remapped_tables(model, source, classes, text)
    source_names = [name for name in names if remapped is None and _can_evaluate(source, name, model)]
    fresh_metrics = evaluate(model, data, names)
    source_metrics = evaluate(source, data, source_names)
    transfer = transfer_weights(model, source, remapped)
    metrics = evaluate(model, data, names)
    changes = tuple(
        LossChange(name, source_metrics.get(name), value, fresh_metrics[name]) for name, value in metrics.items()
    )
    return AdaptationReport(transfer, changes, () if source.tokenizer else (UNKNOWN_TOKENIZER,))


def _remapped_tables(model: Model, source: Model, classes: Registry, text: EncodedCorpus) -> RemappedTables | None:
    """Return the remapped tables of a model with a vocabulary of its own."""
    if (model.spec.get("from") or {}).get("vocabulary") != "new":
        return None
    if not source.tokenizer:
        return RemappedTables(vocabulary_tensors(model.spec, classes, text.vocabulary), {})
    codec = source.text or TextCodec.of(load_corpus(source.spec, classes))
    if source.tokenizer != codec.fingerprint:
        message = "the corpus of the saved model has changed, so its tokenizer cannot be trained again"
        valid = "a model saved with its tokenizer"
        raise SpecError(Problem(code="other-tokenizer", path="from", message=message, valid=valid))
    return remap_tables(model, source, text.tokenizer, codec.tokenizer, classes)


def _can_evaluate(source: Model, name: str, model: Model) -> bool:
    """Return True if the saved model has a head for this objective with the same number of classes."""
    if name not in source.assembled.objectives or needs_teacher(source.objective(name)):
        return False
    if scores_the_vocabulary(source.objective(name), source.assembled):
        return True
    return _class_count(source, name) == _class_count(model, name)


def _class_count(model: Model, name: str) -> int:
    """Return the number of outputs of an objective's head."""
    width = model.topology.stage("body").shape.width
    hidden = next(model.parameters()).new_zeros(1, 1, width)
    with torch.no_grad():
        return model.objective(name).logits(hidden, model.topology.embedding.unembed).shape[-1]


def _load_source(spec: Spec, key: str, classes: Registry, text: EncodedCorpus) -> tuple[Model, SavedModel]:
    """Load the saved model that a spec names, if it has not changed and reads the same tokens."""
    if "name" not in spec[key]:
        message = "this spec has the hash of a model, but not its folder"
        raise StoreError(Problem(code="missing-record", path=key, message=message, valid=f"{key}=FOLDER"))
    saved_model = read_model(spec[key]["name"])
    if "trial" in spec[key] and saved_model.identity != spec[key]["trial"]:
        message = f"`{saved_model.folder}` is not the trial {spec[key]['trial']}, from which this one starts"
        raise StoreError(Problem(code="other-trial", path=key, message=message, valid="`paribus run`, in order"))
    if "trial" not in spec[key] and saved_model.sha256 != spec[key]["sha256"]:
        message = f"`{saved_model.folder}` has changed since the spec was resolved"
        raise StoreError(
            Problem(
                code="model-changed",
                path=key,
                message=message,
                valid="the original model, or a spec that is resolved again",
            )
        )
    if spec[key].get("vocabulary") in ("new", "unchecked"):
        return load_model(saved_model, classes), saved_model
    _check_tokenizer(saved_model.tokenizer, text)
    return load_model(saved_model, classes, text.vocabulary if saved_model.tokenizer else None), saved_model


def _check_tokenizer(fingerprint: str, text: EncodedCorpus) -> None:
    """Reject a tokenizer other than the one that the model was trained with."""
    if fingerprint and fingerprint != text.tokenizer_fingerprint:
        message = "the saved model was trained with another tokenizer, so its ids stand for other tokens"
        valid = "the corpus and the tokenizer that it was trained with, or a tokenizer that is not trained"
        raise SpecError(Problem(code="other-tokenizer", path="tokenizer", message=message, valid=valid))


def _with_common_length(spec: Spec, source: Spec) -> Spec:
    """Return the spec with examples no longer than either model can read."""
    length = min(spec["dims"]["length"], source["dims"]["length"])
    return {**spec, "dims": {**spec["dims"], "length": length}}
