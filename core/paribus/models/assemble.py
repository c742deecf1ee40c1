"""Builders of a spec's corpus, model and data."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any, Final

import torch
from torch import nn

from paribus.assembly.build import ModelParts, as_list, build
from paribus.assembly.components import Classes, make
from paribus.assembly.cost import count_parameters
from paribus.assembly.initialise import initialise
from paribus.datamodule.data import Data, DataOptions
from paribus.datamodule.examples import Examples
from paribus.datamodule.progress import CorpusProgress
from paribus.datamodule.token_store import EncodedCorpus, encode_corpus, encode_documents
from paribus.datamodule.tokenizer_state import TextCodec, read_text, saved_tokenizer_state
from paribus.errors import Problem, SpecError
from paribus.kernels import KERNELS
from paribus.models.checkpoint import load_weights
from paribus.models.lightning_module import Model
from paribus.registry import Registry
from paribus.slots.corpus import Corpus, Tokens
from paribus.slots.initialisation import Initialisation
from paribus.slots.objective import Objective
from paribus.slots.optimizer import Optimizer
from paribus.slots.schedule import Schedule
from paribus.slots.tokenizer import Tokenizer, Vocabulary
from paribus.specs import resolved
from paribus.storage.atomic import cache_folder
from paribus.storage.saved_model import SavedModel, read_model, unbound

Spec = Mapping[str, Any]
BYTES_PER_PARAMETER: Final = 16  # itself, its gradient, and AdamW's two moments, in float32


def load_corpus(spec: Spec, classes: Classes, *, saved_state: bytes | None = None) -> EncodedCorpus:
    """Return the encoded corpus of a spec, from the cache or encoded now, with a progress bar on stderr.

    Where the tokenizer comes from a saved model, `saved_state` is its state, if the caller has it. Otherwise the state
    is read from the saved model, or the tokenizer is trained again on its original corpus.
    """
    corpus = make(classes, "corpus", spec["corpus"], kind=Corpus)
    tokenizer = make(classes, "tokenizer", spec["tokenizer"], kind=Tokenizer)
    options = {"corpus": spec["corpus"], "tokenizer": spec["tokenizer"]}
    learned = (spec.get("from") or {}).get("learned")
    state = None if learned is None else saved_state or _tokenizer_state(spec["from"], classes)
    with CorpusProgress() as progress:
        text = encode_corpus(
            corpus,
            tokenizer,
            spec=options,
            size=spec["dims"]["vocabulary"],
            cache=cache_folder() / "tokens",
            learned=state,
            progress=progress,
        )
    size = spec["dims"]["vocabulary"]
    if size is not None and size < text.vocabulary.size:
        raise SpecError(
            Problem(
                code="vocabulary-too-small",
                path="dims.vocabulary",
                message=f"it is {size}, but the tokenizer `{spec['tokenizer']['name']}` has {text.vocabulary.size} ids",
                valid=f"≥ {text.vocabulary.size}, or null for the tokenizer's own",
            )
        )
    _check_languages(spec, text.languages)
    return text


def _tokenizer_state(source: Spec, classes: Classes) -> bytes:
    """Return the trained state of a saved model's tokenizer."""
    if "name" in source:
        state = saved_tokenizer_state(read_model(source["name"]))
        if state is not None:
            return state
    learned = source["learned"]
    spec = {
        "corpus": learned["corpus"],
        "tokenizer": learned["tokenizer"],
        "dims": {"vocabulary": learned["vocabulary"]},
    }
    return load_corpus(spec, classes).tokenizer.state()


def _check_languages(spec: Spec, languages: Sequence[str]) -> None:
    rows = (spec.get("embedding") or {}).get("languages")
    if rows and len(languages) > rows:
        message = (
            f"the corpus has {len(languages)} languages ({', '.join(languages)}), but `embedding.languages` is {rows}"
        )
        valid = f"≥ {len(languages)}, or 0 for an embedding without languages"
        raise SpecError(Problem(code="out-of-range", path="embedding.languages", message=message, valid=valid))


def meta_model(spec: Spec, classes: Classes) -> ModelParts:
    """Return the model on the meta device. No corpus is read where the size of the vocabulary is known."""
    return build(spec, classes, expected_vocabulary(spec, classes), KERNELS)


def validate_training(spec: Spec, classes: Classes, vocabulary: Vocabulary) -> None:
    """Build what a training needs, on the meta device: raise the errors that it has before its first step.

    No corpus is read, so errors of its text are not found.
    """
    training_module(build(spec, classes, vocabulary, KERNELS), spec, classes)
    if spec.get("evaluate"):
        build({**spec, "objective": spec["evaluate"], "evaluate": None}, classes, vocabulary, KERNELS)


def build_model(spec: Spec, classes: Classes, vocabulary: Vocabulary) -> Model:
    """Return the model with its initial weights."""
    parts = build(spec, classes, vocabulary, KERNELS)
    _check_memory(parts)
    scheme = make(classes, "initialisation", spec["initialisation"], kind=Initialisation)
    info = initialise(parts.children(), scheme, spec["seed"])
    model = training_module(parts, spec, classes)
    model.parameter_info = info
    return model


def model_without_corpus(spec: Spec, classes: Classes) -> Model:
    """Return the model of a spec without a corpus, with its initial weights."""
    tokenizer = make(classes, "tokenizer", spec["tokenizer"], kind=Tokenizer)
    if not tokenizer.traits.get("fixed", False):
        message = f"the tokenizer `{spec['tokenizer']['name']}` is trained on a corpus, but `corpus` is null"
        valid = "a corpus, or a tokenizer without training, such as {name: ids, size: 50257}"
        raise SpecError(Problem(code="missing", path="corpus", message=message, valid=valid))
    for key in ("from", "teacher"):
        if spec.get(key) is not None:
            message = f"`{key}` needs a corpus, but `corpus` is null"
            raise SpecError(Problem(code="missing", path="corpus", message=message, valid="a corpus, or paribus.load"))
    model = build_model(spec, classes, expected_vocabulary(spec, classes))
    model.text = TextCodec(tokenizer)
    model.tokenizer = model.text.fingerprint
    model.flops = 0
    return model


def training_module(parts: ModelParts, spec: Spec, classes: Classes) -> Model:
    """Return the module that trains a model as its spec says."""
    trained = [node["name"] for node in as_list(spec["objective"])]
    evaluated = [node["name"] for node in as_list(spec.get("evaluate") or spec["objective"])]
    _check_heads(parts, trained, evaluated)
    return Model(
        parts,
        spec=spec,
        initialisation=make(classes, "initialisation", spec["initialisation"], kind=Initialisation),
        optimizer=make(classes, "optimizer", spec["optimizer"], kind=Optimizer),
        schedule=make(classes, "schedule", spec["schedule"], kind=Schedule),
        trained=trained,
        evaluated=evaluated,
        seed=spec["seed"],
        steps=(spec["trainer"] or {}).get("max_steps"),
    )


def build_data(spec: Spec, classes: Classes, text: EncodedCorpus) -> Data:
    """Return the batches of a spec, as its objectives form and corrupt them.

    Validation examples follow the options of `evaluate`: a study of mask rates evaluates all variants at one rate, each
    with its trained head.
    """
    evaluate = spec.get("evaluate") or spec["objective"]
    objectives = build(spec, classes, text.vocabulary, KERNELS).objectives
    evaluated = build({**spec, "objective": evaluate, "evaluate": None}, classes, text.vocabulary, KERNELS).objectives
    trainer = spec["trainer"] or {}
    return Data(
        text,
        _named(objectives, as_list(spec["objective"])),
        _named(evaluated, as_list(evaluate)),
        DataOptions(**spec["data"]),
        length=spec["dims"]["length"],
        seed=spec["seed"],
        steps=trainer.get("max_steps"),
        accumulate=trainer.get("accumulate_grad_batches", 1),
    )


def longer_examples(spec: Spec, classes: Classes, data: Data, times: int) -> Examples:
    """Return validation examples that are `times` as long, from new draws of the corpus or from its text."""
    corpus = make(classes, "corpus", spec["corpus"], kind=Corpus)
    if "longer" not in corpus.traits.get("provides", []):
        return _evaluated_examples(spec, classes, data, data.encoded.val, times * spec["dims"]["length"])
    tokens = encode_documents(corpus.longer_documents(times), data.encoded.tokenizer, data.encoded.classes)
    return _evaluated_examples(spec, classes, data, tokens, times * spec["dims"]["length"])


def examples_of_corpus(spec: Spec, classes: Classes, data: Data, corpus: Corpus) -> Examples:
    """Return the examples that the validation split of another corpus gives, with the tokenizer of the data."""
    tokens = encode_documents(corpus.documents("val"), data.encoded.tokenizer, data.encoded.classes)
    return _evaluated_examples(spec, classes, data, tokens, spec["dims"]["length"])


def _evaluated_examples(spec: Spec, classes: Classes, data: Data, tokens: Tokens, length: int) -> Examples:
    """Return examples of `length` tokens, as the objectives of the evaluation form and corrupt them."""
    evaluate = spec.get("evaluate") or spec["objective"]
    evaluated_spec = {**spec, "dims": {**spec["dims"], "length": length}, "objective": evaluate, "evaluate": None}
    objectives = build(evaluated_spec, classes, data.encoded.vocabulary, KERNELS).objectives
    return data.examples(tokens, _named(objectives, as_list(evaluate)), length)


def _named(objectives: nn.ModuleDict, nodes: list[Mapping[str, Any]]) -> dict[str, Objective]:
    named = {node["name"]: objectives[node["name"]] for node in nodes}
    assert all(isinstance(objective, Objective) for objective in named.values())
    return named  # type: ignore[return-value]  # asserted above; mypy does not follow `all`


def expected_vocabulary(spec: Spec, classes: Classes) -> Vocabulary:
    """Return the vocabulary of an untrained tokenizer, or one of the spec's size; read the corpus only if needed."""
    size = spec["dims"]["vocabulary"]
    if needs_corpus(spec, classes):
        return load_corpus(spec, classes).vocabulary
    tokenizer = make(classes, "tokenizer", spec["tokenizer"], kind=Tokenizer)
    if size is None:
        return tokenizer.vocabulary()
    try:
        return tokenizer.vocabulary()._replace(size=size)
    except (RuntimeError, ValueError):  # the tokenizer is not trained
        names = ("pad", "unk", "cls", "sep", "mask", "bos", "eos")
        return Vocabulary(
            size, {name: index for index, name in enumerate(names)}, tuple(range(len(names), size)), frozenset()
        )


def needs_corpus(spec: Spec, classes: Classes) -> bool:
    """Return True if the size of the vocabulary is known only when the tokenizer is trained on the corpus."""
    if spec["dims"]["vocabulary"] is not None:
        return False
    return not make(classes, "tokenizer", spec["tokenizer"], kind=Tokenizer).traits.get("fixed", False)


def _check_memory(parts: ModelParts) -> None:
    """Reject models that do not fit into the memory of this machine, before anything is allocated."""
    count = count_parameters(parts.children())
    needed = count * BYTES_PER_PARAMETER
    available = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    if needed > available:
        raise SpecError(
            Problem(
                code="too-large",
                path="dims",
                message=f"this model has {count:,} parameters: {needed / 2**30:,.1f} GiB with gradients and optimizer, "
                f"where this machine has {available / 2**30:,.1f} GiB",
                valid="smaller dims; `paribus summary` counts any size without allocating it",
            )
        )


def _check_heads(parts: ModelParts, trained: list[str], evaluated: list[str]) -> None:
    for name in evaluated:
        if name not in trained and any(True for _ in parts.objectives[name].parameters()):
            raise SpecError(
                Problem(
                    code="untrained-head",
                    path="evaluate",
                    message=f"`{name}` has a head of its own, which the objective {', '.join(trained)} would never "
                    "train",
                    valid=f"add `{name}` to the objective, or evaluate with what has no parameters",
                )
            )


def load_model(saved: SavedModel, classes: Registry, vocabulary: Vocabulary | None = None) -> Model:
    """Return the model of a folder. Its corpus is read where the folder has no tokenizer, as in trials of earlier
    versions, and `vocabulary` is None."""
    spec = resolved(unbound(saved.spec), registry=classes, optional=("corpus",))
    text = read_text(saved, spec, classes)
    if text is None and vocabulary is None and saved.is_trial:
        read = load_corpus(spec, classes)
        vocabulary = read.vocabulary
        text = TextCodec.of(read) if read.tokenizer_fingerprint == saved.tokenizer else None
    if vocabulary is None:
        vocabulary = expected_vocabulary(spec, classes) if text is None else text.vocabulary
    model = build_model(spec, classes, vocabulary)
    model.to(getattr(torch, saved.dtype))
    load_weights(saved.weights, model)
    model.tokenizer, model.text, model.flops = saved.tokenizer, text, saved.flops
    return model
