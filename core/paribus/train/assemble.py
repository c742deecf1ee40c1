"""A spec becomes a model and its data: the two things that a Trainer wants."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any, Final

from torch import nn

from paribus.assembly.build import ModelParts, as_list, build
from paribus.assembly.components import Classes, make
from paribus.assembly.cost import count_parameters
from paribus.assembly.initialise import initialise
from paribus.errors import ParibusError, Problem, SpecError
from paribus.kernels import KERNELS
from paribus.registry import Registry
from paribus.slots.corpus import Corpus
from paribus.slots.initialisation import Initialisation
from paribus.slots.objective import Objective
from paribus.slots.optimizer import Optimizer
from paribus.slots.schedule import Schedule
from paribus.slots.tokenizer import Tokenizer, Vocabulary
from paribus.specs import resolved
from paribus.storage.atomic import cache_folder
from paribus.storage.saved_model import SavedModel, read_model, unbound
from paribus.train.checkpoint import load_weights
from paribus.train.data import Data, DataOptions
from paribus.train.examples import Examples
from paribus.train.model import Model
from paribus.train.progress import CorpusProgress
from paribus.train.token_store import EncodedCorpus, encode_corpus, encode_documents
from paribus.train.tokenizer_state import TextCodec, read_text, saved_tokenizer_state

Spec = Mapping[str, Any]
BYTES_PER_PARAMETER: Final = 16  # itself, its gradient, and AdamW's two moments, in float32


def load_corpus(spec: Spec, classes: Classes, *, kept: bytes | None = None) -> EncodedCorpus:
    """The spec's corpus as its tokenizer reads it, from the cache or encoded now, with a bar on stderr if that is slow.

    A vocabulary that is not learned of this corpus is `kept`, where it is at hand, or that of the saved model which the
    spec begins from; else it is learned again of what it was learned from.
    """
    corpus = make(classes, "corpus", spec["corpus"], kind=Corpus)
    tokenizer = make(classes, "tokenizer", spec["tokenizer"], kind=Tokenizer)
    said = {"corpus": spec["corpus"], "tokenizer": spec["tokenizer"]}
    learned = (spec.get("from") or {}).get("learned")
    state = None if learned is None else kept or _state(spec["from"], classes)
    with CorpusProgress() as progress:
        found = encode_corpus(
            corpus,
            tokenizer,
            spec=said,
            size=spec["dims"]["vocabulary"],
            cache=cache_folder() / "tokens",
            learned=state,
            progress=progress,
        )
    wanted = spec["dims"]["vocabulary"]
    if wanted is not None and wanted < found.vocabulary.size:
        raise SpecError(
            Problem(
                code="vocabulary-too-small",
                path="dims.vocabulary",
                message=f"it is {wanted}, but the tokenizer `{spec['tokenizer']['name']}` has "
                f"{found.vocabulary.size} ids",
                valid=f"≥ {found.vocabulary.size}, or null for the tokenizer's own",
            )
        )
    _languages_have_rows(spec, found.languages)
    return found


def _state(began: Spec, classes: Classes) -> bytes:
    """What the tokenizer learned of the corpus that it was trained on."""
    if "name" in began:
        state = saved_tokenizer_state(read_model(began["name"]))
        if state is not None:
            return state
    learned = began["learned"]
    spec = {
        "corpus": learned["corpus"],
        "tokenizer": learned["tokenizer"],
        "dims": {"vocabulary": learned["vocabulary"]},
    }
    return load_corpus(spec, classes).tokenizer.state()


def _languages_have_rows(spec: Spec, languages: Sequence[str]) -> None:
    rows = (spec.get("embedding") or {}).get("languages")
    if rows and len(languages) > rows:
        message = (
            f"the corpus has {len(languages)} languages ({', '.join(languages)}), but `embedding.languages` is {rows}"
        )
        valid = f"≥ {len(languages)}, or 0 for an embedding without languages"
        raise SpecError(Problem(code="out-of-range", path="embedding.languages", message=message, valid=valid))


def meta_model(spec: Spec, classes: Classes) -> ModelParts:
    """The model on the meta device, for counting: no corpus is read where the size of the vocabulary is known."""
    return build(spec, classes, expected_vocabulary(spec, classes), KERNELS)


def build_model(spec: Spec, classes: Classes, vocabulary: Vocabulary) -> Model:
    """The model with its first values."""
    parts = build(spec, classes, vocabulary, KERNELS)
    _fits(parts)
    scheme = make(classes, "initialisation", spec["initialisation"], kind=Initialisation)
    about = initialise(parts.children(), scheme, spec["seed"])
    trained = [node["name"] for node in as_list(spec["objective"])]
    evaluated = [node["name"] for node in as_list(spec.get("evaluate") or spec["objective"])]
    _heads_are_trained(parts, trained, evaluated)
    model = Model(
        parts,
        spec=spec,
        optimizer=make(classes, "optimizer", spec["optimizer"], kind=Optimizer),
        schedule=make(classes, "schedule", spec["schedule"], kind=Schedule),
        trained=trained,
        evaluated=evaluated,
        seed=spec["seed"],
        steps=(spec["trainer"] or {}).get("max_steps"),
    )
    model.parameter_info = about
    return model


def build_data(spec: Spec, classes: Classes, text: EncodedCorpus) -> Data:
    """Batches as the spec's objectives form and corrupt them.

    The options of `evaluate` say how validation examples are made, whatever was trained with: a study of mask rates
    measures all of its variants at one rate. The head that is evaluated is the trained one.
    """
    asked = spec.get("evaluate") or spec["objective"]
    objectives = build(spec, classes, text.vocabulary, KERNELS).objectives
    evaluated = build({**spec, "objective": asked, "evaluate": None}, classes, text.vocabulary, KERNELS).objectives
    trainer = spec["trainer"] or {}
    return Data(
        text,
        _named(objectives, as_list(spec["objective"])),
        _named(evaluated, as_list(asked)),
        DataOptions(**spec["data"]),
        length=spec["dims"]["length"],
        seed=spec["seed"],
        steps=trainer.get("max_steps"),
        accumulate=trainer.get("accumulate_grad_batches", 1),
    )


def longer_examples(spec: Spec, classes: Classes, data: Data, times: int) -> Examples:
    """Validation examples of `times` as many rows: of what the corpus draws for it, or of more of its text."""
    corpus = make(classes, "corpus", spec["corpus"], kind=Corpus)
    drawn = "longer" in corpus.traits.get("provides", [])
    tokens = encode_documents(corpus.longer_documents(times), data.encoded.tokenizer) if drawn else data.encoded.val
    asked, length = spec.get("evaluate") or spec["objective"], times * spec["dims"]["length"]
    longer_examples = {**spec, "dims": {**spec["dims"], "length": length}, "objective": asked, "evaluate": None}
    objectives = build(longer_examples, classes, data.encoded.vocabulary, KERNELS).objectives
    return data.examples(tokens, _named(objectives, as_list(asked)), length)


def _named(objectives: nn.ModuleDict, nodes: list[Mapping[str, Any]]) -> dict[str, Objective]:
    found = {node["name"]: objectives[node["name"]] for node in nodes}
    assert all(isinstance(objective, Objective) for objective in found.values())
    return found  # type: ignore[return-value]  # asserted above; mypy does not follow `all`


def expected_vocabulary(spec: Spec, classes: Classes) -> Vocabulary:
    """The vocabulary without a corpus: that of a tokenizer with nothing to learn, or one of the size the spec names."""
    size = spec["dims"]["vocabulary"]
    tokenizer = make(classes, "tokenizer", spec["tokenizer"], kind=Tokenizer)
    if size is None:
        return load_corpus(spec, classes).vocabulary if _learns(tokenizer) else tokenizer.vocabulary()
    try:
        return tokenizer.vocabulary()._replace(size=size)
    except (RuntimeError, ValueError):  # it has yet to be trained
        names = ("pad", "unk", "cls", "sep", "mask", "bos", "eos")
        return Vocabulary(
            size, {name: at for at, name in enumerate(names)}, tuple(range(len(names), size)), frozenset()
        )


def _learns(tokenizer: Tokenizer) -> bool:
    """Whether a text changes what it is. One that cannot tell what it is before it has read any learns."""
    try:
        before = tokenizer.state()
        tokenizer.train(["all else equal " * 8], None)
    except (RuntimeError, ValueError, ParibusError):
        return True
    return tokenizer.state() != before


def _fits(parts: ModelParts) -> None:
    """Refuses, before anything is allocated, what no memory of this machine could hold."""
    count = count_parameters(parts.children())
    needed = count * BYTES_PER_PARAMETER
    there = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    if needed > there:
        raise SpecError(
            Problem(
                code="too-large",
                path="dims",
                message=f"this model has {count:,} parameters: {needed / 2**30:,.1f} GiB with gradients and optimizer, "
                f"where this machine has {there / 2**30:,.1f} GiB",
                valid="smaller dims; `paribus summary` counts any size without allocating it",
            )
        )


def _heads_are_trained(parts: ModelParts, trained: list[str], evaluated: list[str]) -> None:
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


def load_model(found: SavedModel, classes: Registry, vocabulary: Vocabulary | None = None) -> Model:
    """The model of a folder. Its corpus is read where the folder has no tokenizer, as of a trial of an earlier version,
    and where no `vocabulary` is given that is known already."""
    spec = resolved(unbound(found.spec), registry=classes)
    text = read_text(found, spec, classes)
    if text is None and vocabulary is None and found.is_trial:
        read = load_corpus(spec, classes)
        vocabulary = read.vocabulary
        text = TextCodec.of(read) if read.tokenizer_fingerprint == found.tokenizer else None
    if vocabulary is None:
        vocabulary = expected_vocabulary(spec, classes) if text is None else text.vocabulary
    model = build_model(spec, classes, vocabulary)
    if found.dtype == "float64":
        model.double()
    load_weights(found.weights, model)
    model.tokenizer, model.text, model.flops = found.tokenizer, text, found.flops
    return model
