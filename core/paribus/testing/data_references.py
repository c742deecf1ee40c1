"""The author's references of objectives, corpora and measures: expected values of one example, document or model.

- objective: `(objective, example)` -> values by name: targets, terms of the loss, streams (`body.tokens`), `prompt` or
  `unigram_loss`. An `Example` has the text before and after corruption, its draws and its forward pass.
- corpus: `(corpus, document)` -> fields of the document by name, such as `labels`.
- measure: `(measure, model)` -> values by name, from an `EvaluatedModel`.

They return the values that follow from the rest of their input, and may `assert` what else is true of it.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, NamedTuple

import numpy as np
import torch
from torch import Tensor

from paribus.datamodule.data import VALIDATION
from paribus.datamodule.examples import Examples
from paribus.errors import ParibusError
from paribus.models.assemble import build_model
from paribus.models.evaluate import evaluation_mode
from paribus.parts.batch import Batch, Stream
from paribus.parts.random_draws import Draw
from paribus.slots.corpus import Tokens
from paribus.slots.objective import ForwardPass
from paribus.slots.tokenizer import Vocabulary
from paribus.testing.corpus_checks import make_corpus
from paribus.testing.host_models import Case, HostModel
from paribus.testing.measure_setup import evaluated_model, make_measure, measure_setup
from paribus.testing.objective_setup import EPOCH, SEED, ObjectiveSetup, objective_setup, with_fields, with_length
from paribus.testing.small_model import TOLERANCE, max_difference, noise

DRAWS: Final = ((SEED, EPOCH, 0.75), (SEED, VALIDATION, 1.0))  # seed, epoch, and progress of the training
COUNT: Final = 12  # examples
MAX_DOCUMENTS: Final = 60  # of each split
TIMES: Final = 2  # length of longer documents
PROMPT: Final = 3  # tokens of the example in a prompt that is not empty
SHORT_LENGTH: Final = 12  # some texts of the synthetic corpus are longer

Comparison = tuple[str, Any, Any]  # description, output, output of the reference


class Example(NamedTuple):
    """One example of an objective, as its reference receives it; tensors have no batch dimension."""

    tokens: Tokens  # the split
    index: int  # type: ignore[assignment]  # number of the example; a tuple has a method of this name
    draw: Draw  # draws of this example alone: `draw.uniform("pick", 5)` is (1, 5)
    formed: Mapping[str, Stream]  # streams before corruption
    streams: Mapping[str, Stream]  # streams that the model reads
    targets: Mapping[str, Tensor]
    run: ForwardPass  # pass of a batch of this example alone
    vocabulary: Vocabulary
    prompt_ids: tuple[int, ...] = ()  # tokens of a prompt


def objective_values(case: Case, host: HostModel, reference: Callable[..., Any]) -> Iterator[Comparison]:
    """Compare the streams, targets, losses and prompts of single examples.

    Documents are mixed, packed, or apart and short; examples that an objective forms are also shorter than some texts.
    With other options, there is one draw.
    """
    is_variant = host not in case.host_models
    for setup, examples in _examples(case, host):
        for seed, epoch, progress in DRAWS[:1] if is_variant else DRAWS:
            for number in range(min(COUNT, examples.count)):
                index = examples.count - 1 - number if examples.packed is not None else number  # the last have padding
                draw = Draw(seed, epoch, torch.tensor([index]), progress)
                for name, output, expected in _example_values(setup, examples, draw, reference):
                    yield f"`{name}` of example {index} of length {setup.length}", output, expected


def _examples(case: Case, host: HostModel) -> Iterator[tuple[ObjectiveSetup, Examples]]:
    try:
        mixed, apart, packed = (objective_setup(case, host, documents=name) for name in ("mixed", "apart", "packed"))
    except (ParibusError, ValueError):  # the options are not valid for this text
        return
    short = with_length(case, mixed, SHORT_LENGTH) if mixed is not None and mixed.examples.former is not None else None
    for setup in (mixed, packed, short):
        if setup is not None:
            yield setup, setup.examples
    if apart is not None and mixed is not None and mixed.examples.former is None:
        tokens = apart.examples.tokens
        if tokens.languages is None and tokens.labels is None and tokens.targets is None:
            sentences = with_fields(tokens, documents=np.arange(len(tokens.sentences)))  # each is a document
            objectives, vocabulary = apart.examples.objectives, apart.text.vocabulary
            yield apart, Examples(sentences, objectives, apart.length, vocabulary, "apart")


def _example_values(
    setup: ObjectiveSetup, examples: Examples, draw: Draw, reference: Callable[..., Any]
) -> Iterator[Comparison]:
    batch, objective = examples.batch(draw), setup.model.objective(setup.name)
    targets = batch.targets[setup.name]
    streams = {path: _single(stream) for path, stream in batch.streams.items()}
    example = Example(
        examples.tokens,
        int(draw.index[0]),
        draw,
        {path: _single(stream) for path, stream in examples.form(draw, setup.length).streams.items()},
        streams,
        {key: value[0] for key, value in targets.items()},
        setup.run(batch).of(setup.name),
        setup.text.vocabulary,
    )
    values = reference(objective, example)
    for name, expected in values.items():
        part, _, field = name.partition(".")
        if name in targets:
            yield name, example.targets[name], expected
        elif part in streams:
            yield name, getattr(streams[part], field), expected
        elif name in setup.label_keys:
            yield name, setup.terms(batch)[name].total, expected
        elif name == "prompt":
            yield name, objective.prompt(()), expected
            prompted = example._replace(prompt_ids=tuple(streams["body"].tokens[:PROMPT].tolist()))
            yield name, objective.prompt(prompted.prompt_ids), reference(objective, prompted)["prompt"]
        elif name == "unigram_loss":
            yield name, objective.unigram_loss(setup.text.train, targets), expected
        else:
            raise ValueError(f"unknown name {name!r}; valid: {', '.join(value_names(setup, batch))}")


def _single(stream: Stream) -> Stream:
    return stream.apply(lambda vector: vector[0])


def value_names(setup: ObjectiveSetup, batch: Batch) -> list[str]:
    """Return the names of the values that a reference of an objective may give."""
    streams = [f"{path}.{field}" for path in batch.streams for field in Stream._fields]
    return [*batch.targets[setup.name], *setup.label_keys, *streams, "prompt", "unigram_loss"]


def document_values(case: Case, host: HostModel, reference: Callable[..., Any]) -> Iterator[Comparison]:
    """Compare the fields of single documents of both splits, and of longer ones, beside the first model only."""
    if not host.label.startswith(case.host_models[0].label):
        return
    has_longer = "longer" in case.entry.traits.get("provides", [])
    try:
        corpus = make_corpus(case, host)
        documents = [
            *itertools.islice(corpus.documents("train"), MAX_DOCUMENTS),
            *itertools.islice(corpus.documents("val"), MAX_DOCUMENTS),
            *itertools.islice(corpus.longer_documents(TIMES) if has_longer else (), MAX_DOCUMENTS),
        ]
    except (ParibusError, ValueError):  # the options are not valid, or there are no such documents
        return
    for document in documents:
        for name, expected in reference(corpus, document).items():
            yield f"`{name}` of the document {document.name!r}", getattr(document, name), expected


def measured_values(case: Case, host: HostModel, reference: Callable[..., Any]) -> Iterator[Comparison]:
    """Compare the values of a model with noise in its weights, in float64."""
    setup = measure_setup(case, host)
    if setup is None:
        return
    model = build_model(setup.spec, case.registry, setup.text.vocabulary).double().eval()
    for path, parameter in model.named_parameters():  # weights of attention that are not uniform
        parameter.data.add_(noise(path, *parameter.shape), alpha=0.3)
    exact = setup._replace(model=model)
    try:
        measure, evaluated = make_measure(case, exact, {}), evaluated_model(case, exact)
    except (ParibusError, ValueError):  # the options are not valid
        return
    with evaluation_mode(model):
        values, expected = measure.measure(evaluated), reference(measure, evaluated)
    for name, value in expected.items():
        if not isinstance(values[name], str):  # the reason why there is no value
            yield f"`{name}`", values[name], value


def difference(output: Any, expected: Any) -> str:
    """Return how an output differs from the reference, or "" if it is equal up to rounding."""
    is_tuple_of_numbers = isinstance(output, tuple) and all(isinstance(value, float | int) for value in output)
    if not isinstance(output, Tensor | float | int) and not (is_tuple_of_numbers and isinstance(expected, tuple)):
        return "" if output == expected else f"is {output!r}; the reference has {expected!r}"
    a, b = _as_tensor(output), _as_tensor(expected)
    if a.shape != b.shape:
        return f"has the shape {tuple(a.shape)}; the reference has {tuple(b.shape)}"
    change = max_difference(a, b)
    return f"differs by {change:.2g} from the reference" if change > TOLERANCE else ""


def _as_tensor(value: Any) -> Tensor:
    tensor: Tensor = torch.atleast_1d(torch.as_tensor(value, dtype=torch.float64).detach())
    return tensor
