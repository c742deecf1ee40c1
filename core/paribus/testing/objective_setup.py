"""Small model, data and batches of the objective under test."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
import torch
from torch import Tensor

from paribus.assembly.forward_pass import BatchForward
from paribus.datamodule.data import Data
from paribus.datamodule.examples import Examples
from paribus.datamodule.synthetic_corpus import encode_synthetic_corpus
from paribus.datamodule.token_store import EncodedCorpus, SplitTokens
from paribus.errors import ParibusError, SpecError
from paribus.models.assemble import build_data, build_model
from paribus.models.lightning_module import Model
from paribus.parts.batch import IGNORED, Batch
from paribus.parts.random_draws import Draw
from paribus.slots.corpus import Ints, Labels, Tokens
from paribus.slots.objective import LossTerm, Objective, TrainingExamples
from paribus.specs import resolved
from paribus.testing.host_models import Case, HostModel
from paribus.testing.small_model import noise

BATCH: Final = 8
LENGTH: Final = 32
SEED, EPOCH, PROGRESS = 7, 3, 0.5


class ObjectiveSetup(NamedTuple):
    """Float64 model and data with the objective under test alone."""

    name: str
    model: Model
    data: Data
    text: EncodedCorpus
    length: int
    spec: Mapping[str, Any]
    first: int = 0  # number of the first example that is tested

    @property
    def objective(self) -> Objective:
        """Objective on the side of the data."""
        return self.data.train_examples.objectives[self.name]

    @property
    def examples(self) -> Examples:
        return self.data.train_examples

    @property
    def label_keys(self) -> Mapping[str, str]:
        return self.objective.terms

    def draw(
        self, index: Tensor | None = None, *, seed: int = SEED, epoch: int = EPOCH, progress: float = PROGRESS
    ) -> Draw:
        return Draw(seed, epoch, torch.arange(self.first, self.first + BATCH) if index is None else index, progress)

    def batch(
        self, index: Tensor | None = None, *, seed: int = SEED, epoch: int = EPOCH, progress: float = PROGRESS
    ) -> Batch:
        """Return some examples of the training split, by default the first."""
        return self.examples.batch(self.draw(index, seed=seed, epoch=epoch, progress=progress))

    def batch_of(self, tokens: Tokens) -> Batch:
        """Return the first examples of another text."""
        documents = self.data.options.documents
        objectives = self.examples.objectives
        return Examples(tokens, objectives, self.length, self.text.vocabulary, documents).batch(self.draw())

    def formed(self) -> TrainingExamples:
        """Return the first examples before corruption."""
        return self.examples.form(self.draw(), self.length)

    def corrupted(self, formed: TrainingExamples) -> Batch:
        streams, targets = self.objective.corrupt(formed.streams, formed.targets, self.draw())
        return Batch(streams, {self.name: targets}, torch.arange(BATCH))

    def run(self, batch: Batch) -> BatchForward:
        return self.model.run(batch, [self.name])

    def terms(self, batch: Batch, run: BatchForward | None = None) -> dict[str, LossTerm]:
        """Return the loss terms by their names in `terms`."""
        run = self.run(batch) if run is None else run
        return dict(self.model.objective(self.name)(run.of(self.name)))

    def total(self, batch: Batch, term: str) -> float:
        return float(self.terms(batch)[term].total)

    def labels(self, batch: Batch, term: str) -> Tensor:
        return batch.targets[self.name][self.label_keys[term]]

    def with_labels(self, batch: Batch, term: str, labels: Tensor) -> Batch:
        targets = {**batch.targets[self.name], self.label_keys[term]: labels}
        return batch._replace(targets={**batch.targets, self.name: targets})

    def only_label(self, batch: Batch, term: str, slot: tuple[int, ...]) -> Batch:
        """Return the example of a label as a batch, in which all other labels of the term are ignored."""
        row = batch.rows(slice(slot[0], slot[0] + 1))
        labels = self.labels(row, term)
        single = torch.full_like(labels, IGNORED)
        single[(0, *slot[1:])] = labels[(0, *slot[1:])]
        return self.with_labels(row, term, single)


def objective_setup(
    case: Case, host: HostModel, *, documents: str = "mixed", length: int = LENGTH
) -> ObjectiveSetup | None:
    """Return the setup of a model, built once; None if the spec does not accept these `documents`."""
    key = ("objective", host.label, documents, str(length))
    if key not in case.setups:
        case.setups[key] = _objective_setup(case, host, documents, length)
    setup: ObjectiveSetup | None = case.setups[key]
    return setup


def required_setup(case: Case, host: HostModel) -> ObjectiveSetup:
    """Return the setup of a model whose spec accepts any documents."""
    setup = objective_setup(case, host)
    assert setup is not None
    return setup


def _objective_setup(case: Case, host: HostModel, documents: str, length: int) -> ObjectiveSetup | None:
    spec = host.spec
    if documents != "mixed":
        try:
            spec = resolved({**spec, "data": {**spec["data"], "documents": documents}}, registry=case.registry)
        except SpecError:
            return None
    setup = build_setup(case, spec, length)
    # The first examples of packed documents are full, the last have padding.
    return setup._replace(first=max(0, setup.examples.count - BATCH)) if documents == "packed" else setup


def build_setup(case: Case, spec: Mapping[str, Any], length: int = LENGTH) -> ObjectiveSetup:
    """Build model and data of a spec with one objective, on the synthetic corpus."""
    text = _encoded(case, spec)
    if case.registry.index.find("tokenizer", spec["tokenizer"]["name"]).traits.get("modality") == "images":
        length = spec["dims"]["length"]  # the size of the images determines it
    spec = {**spec, "dims": {**spec["dims"], "length": length}, "trainer": {"max_steps": 8}}
    model = build_model(spec, case.registry, text.vocabulary)
    if spec.get("teacher") is not None:
        model.set_teacher(build_model({**spec, "seed": spec["seed"] + 1}, case.registry, text.vocabulary))
    model.double().eval()
    for path, parameter in model.named_parameters():  # biases of 0 hide errors
        parameter.data.add_(noise(path, *parameter.shape), alpha=0.3)
    return ObjectiveSetup(case.entry.name, model, build_data(spec, case.registry, text), text, length, spec)


def with_length(case: Case, setup: ObjectiveSetup, length: int) -> ObjectiveSetup | None:
    """Return the same model with examples of another length, None if the objective does not accept it."""
    if length > setup.length or setup.model.topology.embedding.values_per_example is not None:
        return None
    key = ("length", repr(setup.spec), str(length))
    if key not in case.setups:
        case.setups[key] = _with_length(case, setup, length)
    other: ObjectiveSetup | None = case.setups[key]
    return other


def _with_length(case: Case, setup: ObjectiveSetup, length: int) -> ObjectiveSetup | None:
    spec = {**setup.spec, "dims": {**setup.spec["dims"], "length": length}}
    try:
        data = build_data(spec, case.registry, setup.text)
        return setup._replace(data=data, length=length, spec=spec) if data.train_examples.count >= BATCH else None
    except ParibusError:  # too short, or the corpus has too little text
        return None


def _encoded(case: Case, spec: Mapping[str, Any]) -> EncodedCorpus:
    """Return the encoded synthetic corpus of a spec, once for specs that differ in no option of the data."""
    key = ("text", repr((spec["tokenizer"], spec["corpus"], spec["dims"]["vocabulary"])))
    if key not in case.setups:
        case.setups[key] = encode_synthetic_corpus(spec, case.registry)
    text: EncodedCorpus = case.setups[key]
    return text


def tensors(examples: Batch | TrainingExamples, name: str) -> dict[str, Tensor]:
    """Return all tensors of a batch, by names for messages."""
    targets = examples.targets if isinstance(examples, TrainingExamples) else examples.targets[name]
    streams = {
        f"`{field}` of the stream `{path}`": value
        for path, stream in examples.streams.items()
        for field, value in stream._asdict().items()
        if value is not None
    }
    return {**streams, **{f"the target `{key}`": value for key, value in targets.items()}}


def difference(batch: Batch | TrainingExamples, other: Batch | TrainingExamples, name: str) -> str:
    """Return the name of the first tensor that differs, or ""."""
    first, second = tensors(batch, name), tensors(other, name)
    for key in first.keys() | second.keys():
        if key not in first or key not in second or not torch.equal(first[key], second[key]):
            return key
    return ""


class Substitution(NamedTuple):
    """Text in which one token or one label of a document is replaced."""

    tokens: Tokens
    place: str  # for messages


def substitutions(setup: ObjectiveSetup, count: int) -> Iterator[Substitution]:
    """Yield texts of the first examples with one token replaced, or one label."""
    tokens = setup.examples.tokens
    limit = min(len(tokens.ids), BATCH * setup.length)
    for place in range(0, limit, max(1, limit // count)):
        if (ids := replaced(setup, tokens.ids, place)) is not None:
            yield Substitution(with_fields(tokens, ids=ids), f"token {place} of the text")
    if tokens.targets is not None:
        targets = tokens.targets
        limit = min(len(targets.ids), BATCH * setup.length)
        for place in range(0, limit, max(1, limit // count)):
            if (ids := replaced(setup, targets.ids, place)) is not None:
                yield Substitution(
                    with_fields(tokens, targets=with_fields(targets, ids=ids)), f"token {place} of the target text"
                )
    if tokens.labels is not None:
        yield from _label_substitutions(tokens, tokens.labels)


def _label_substitutions(tokens: Tokens, labels: Labels) -> Iterator[Substitution]:
    kinds = sorted(set(labels.values.tolist()))
    for place in range(min(len(labels.values), BATCH) if len(kinds) > 1 else 0):
        values = labels.values.copy()
        values[place] = kinds[(kinds.index(values[place]) + 1) % len(kinds)]
        yield Substitution(with_fields(tokens, labels=labels._replace(values=values)), f"label {place} of the corpus")


def replaced(setup: ObjectiveSetup, ids: Ints, place: int) -> Ints | None:
    """Return ids with another token of text at a place: one that starts a word if, and only if, the original does."""
    vocabulary, token = setup.text.vocabulary, int(ids[place])
    if token in vocabulary.reserved:
        return None
    starts = vocabulary.word_starts or frozenset()
    alike = [
        other
        for other in sorted(set(np.asarray(setup.text.train.ids[:4096]).tolist()))
        if other not in vocabulary.reserved and (other in starts) == (token in starts)
    ]
    if len(alike) < 2 or token not in alike:
        return None
    changed = np.array(ids)
    changed[place] = alike[(alike.index(token) + 1) % len(alike)]
    return changed


def select_documents(tokens: Tokens, numbers: Sequence[int]) -> Tokens:
    """Return some documents of a split, with their targets, languages and labels."""
    bounds, documents = np.asarray(tokens.sentences), np.asarray(tokens.documents)
    sentences = [s for number in numbers for s in range(documents[number], documents[number + 1])]
    labels = None
    if tokens.labels is not None:
        starts = np.asarray(tokens.labels.documents)
        places = [place for number in numbers for place in range(starts[number], starts[number + 1])]
        values = np.asarray(tokens.labels.values)[places]
        labels = Labels(values, _bounds(np.diff(starts)[list(numbers)]), tokens.labels.names)
    return SplitTokens(
        np.concatenate([np.asarray(tokens.ids[bounds[s] : bounds[s + 1]]) for s in sentences]),
        _bounds(np.diff(bounds)[sentences]),
        _bounds(np.diff(documents)[list(numbers)]),
        None if tokens.targets is None else select_documents(tokens.targets, numbers),
        None if tokens.languages is None else np.asarray(tokens.languages)[list(numbers)],
        labels,
    )


def _bounds(sizes: Ints) -> Ints:
    """(N,) -> (N + 1,): start of each item, and the end of the last."""
    return np.pad(np.cumsum(sizes), (1, 0))


def with_fields(tokens: Tokens, **changes: Any) -> Tokens:
    """Return tokens of a split with other fields."""
    fields = {field.name: getattr(tokens, field.name) for field in dataclasses.fields(SplitTokens)}
    return SplitTokens(**{**fields, **changes})
