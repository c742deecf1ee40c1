"""Prediction of labels for new texts: `paribus.predict(model, ["A text."])`."""

from __future__ import annotations

import re
import warnings
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple, final

import torch

from paribus.assembly.build import as_list
from paribus.assembly.devices import move_batch
from paribus.datamodule.token_store import encode_documents
from paribus.errors import DataError, Problem, SpecError, closest_match, join_names
from paribus.inference.label_likelihood import Example, as_examples, label_likelihoods
from paribus.inference.prediction_inputs import Choices, Inputs, Texts, as_choices, as_inputs
from paribus.inference.prompts import require_text, resolve_model
from paribus.models.evaluate import evaluation_mode
from paribus.models.lightning_module import Model
from paribus.parts.batch import Batch
from paribus.parts.few_shot_prompt import LabelledText
from paribus.parts.label_scores import Normalize
from paribus.registry import Registry, installed
from paribus.slots.corpus import Document, image_document
from paribus.slots.objective import Prediction
from paribus.specs.training_rules import provides

BATCH: Final = 32  # texts of a forward pass
WORD: Final = re.compile(r"\w+(?:[.'\u2019-]\w+)*|[^\w\s]")  # a word or a punctuation mark, as in the corpora of tags
NO_SPACE: Final = re.compile(r"\S+")
NO_ANSWER: Final = (-1, -1)


class WordTag(NamedTuple):
    """Predicted tag of a word."""

    word: str
    label: str
    probability: float


@final
@dataclass(frozen=True, kw_only=True)
class TextPrediction:
    """What a model predicts for a text, or for a pair; which of the fields are set depends on its objective."""

    text: str
    pair: str | None = None
    label: str | None = None  # the most probable class, or the best choice
    probability: float | None = None  # of that class
    probabilities: dict[str, float] | None = None  # of all classes, by name, or of all choices
    log_likelihoods: dict[str, float] | None = None  # of labels after a prompt, in nats, normalized if requested
    tags: tuple[WordTag, ...] | None = None  # of each word
    score: float | None = None  # of a regression; of an answer, how much higher it scores than no answer
    answer: str | None = None  # part of the pair's second text; empty: there is none
    start: int | None = None  # character of the second text at which the answer starts

    def to_json(self) -> dict[str, Any]:
        """Return the fields that are set."""
        document = {name: value for name, value in vars(self).items() if value is not None}
        return document if self.tags is None else {**document, "tags": [tag._asdict() for tag in self.tags]}


def predict(  # noqa: PLR0913  # one keyword for each option
    model: Model | str | Path,
    texts: Texts,
    pairs: str | Sequence[str] | None = None,
    *,
    choices: Choices | None = None,
    examples: Sequence[Example] | None = None,
    template: str | None = None,
    normalize: Normalize = "none",
    objective: str | None = None,
    split: Literal["words", "spaces"] = "words",
    batch: int = BATCH,
    registry: Registry | None = None,
) -> list[TextPrediction]:
    """Return what a trained model predicts for each text: a class, tags of its words, a number, an answer, or the best
    of several choices.

    `pairs` has the second text of each, for a model that was trained on pairs; of a question, it is the context with
    the answer. Long texts are truncated, or divided into examples, as in training. `objective` is one of those that the
    model was trained for; by default the first that predicts something of a whole text. Where words are tagged, or make
    up an answer, punctuation marks are words too; with `split="spaces"`, words are what is between spaces.

    Images are arrays of pixels, for a model that was trained on images of this size.

    `choices` are continuations of every text, or a list of them for each text, for a model that was trained for
    multiple choice. A language model reads `examples`, (text, label), in its prompt, formatted by `template`, and
    predicts the label with the highest log-likelihood, or the highest per token or byte of the label (`normalize`). Its
    `choices` are the labels; by default those of the examples. Without examples, they are endings of the text.
    """
    classes = registry or installed()
    model = resolve_model(model, classes)
    if batch < 1:
        raise SpecError(Problem(code="out-of-range", path="batch", message=f"got {batch}", valid="≥ 1"))
    inputs = as_inputs(texts, pairs, choices)
    _check_unused("examples", examples is not None and inputs.images is not None, "images have no prompt")
    if examples is not None or (inputs.choices and objective is None and not _predicting(model, "choice")):
        _check_unused("objective", objective is not None, "the likelihood of labels needs no objective")
        return _by_likelihood(model, inputs, as_examples(examples or ()), template, normalize, batch)
    for option, is_set in (("template", template is not None), ("normalize", normalize != "none")):
        _check_unused(option, is_set, "the model predicts by a head of its own, not by the likelihood of labels")
    words = NO_SPACE if split == "spaces" else WORD
    return _by_head(model, inputs, _objective(model, objective), words, batch, classes)


def _check_unused(option: str, is_set: bool, reason: str) -> None:
    if is_set:
        raise SpecError(Problem(code="unused-option", path=option, message=reason, valid=f"no `{option}`"))


def _by_head(
    model: Model, inputs: Inputs, objective: str, words: re.Pattern[str], batch: int, registry: Registry
) -> list[TextPrediction]:
    """Return what the head of an objective predicts."""
    documents = _documents(model, objective, inputs, words, registry)
    predictions: list[Prediction] = []
    skipped: Counter[str] = Counter()
    with evaluation_mode(model), torch.inference_mode():
        for start in range(0, len(documents), batch):
            predictions += _predictions(model, objective, documents[start : start + batch], skipped)
    for reason, tokens in skipped.items():
        if tokens:
            warnings.warn(f"{tokens:,} {reason}", stacklevel=3)
    pairs: Sequence[str | None] = inputs.pairs or [None] * len(documents)
    names: Sequence[Sequence[str]] = inputs.choices or [_class_names(model, objective)] * len(documents)
    return [_as_text(*row, words) for row in zip(predictions, inputs.texts, pairs, names, strict=True)]


def _predicting(model: Model, kind: str | None = None) -> list[str]:
    """Return the names of the trained objectives that predict, or that predict what `kind` says."""
    kinds = {name: model.objective(name).traits.get("predicts") for name in model.trained}
    return [name for name, predicted in kinds.items() if predicted and kind in (None, predicted)]


def _objective(model: Model, requested: str | None) -> str:
    """Return the name of the trained objective that predicts."""
    predicting = _predicting(model)
    if requested is None and predicting:
        return predicting[0]
    if requested in predicting:
        return str(requested)
    if requested is None or requested in model.trained:
        message = f"a model that was trained for {requested or join_names(model.trained)} predicts nothing of a text"
        valid = (
            "a model that was trained for a class, tags, a number, answers or choices; `examples` for a language model"
        )
    else:
        message, valid = f"the model was not trained for `{requested}`", join_names(predicting) or "none"
    suggestion = "" if requested is None else closest_match(requested, predicting)
    raise SpecError(
        Problem(code="cannot-predict", path="objective", message=message, valid=valid, suggestion=suggestion)
    )


def _documents(model: Model, name: str, inputs: Inputs, words: re.Pattern[str], registry: Registry) -> list[Document]:
    """Return the inputs as documents of a corpus, with labels that mean nothing."""
    reads_images = require_text(model).tokenizer.traits.get("modality", "text") == "images"
    if reads_images != (inputs.images is not None):
        kinds = ("texts", "images")
        message = f"a model that was trained for {name} on {kinds[reads_images]} reads no {kinds[not reads_images]}"
        raise SpecError(Problem(code="other-modality", path="images", message=message, valid=kinds[reads_images]))
    if inputs.images is not None:
        _check_size(model, inputs.images[0].size)
        return [image_document(*row, 0) for row in zip(inputs.texts, inputs.images, strict=True)]
    kind = model.objective(name).traits["predicts"]
    _check_choices(model, name, inputs.choices)
    if inputs.choices is None or inputs.pairs is not None:
        _check_pairs(model, name, len(inputs.texts), inputs.pairs, registry)
    documents = []
    for index, text in enumerate(inputs.texts):
        sentences = tuple(words.findall(text)) if kind == "tags" else (text,)
        target = _target(inputs, index, words if kind == "answer" else None)
        labels = {"tags": (0.0,) * len(sentences), "answer": tuple(map(float, NO_ANSWER))}.get(kind, (0.0,))
        documents.append(Document(f"text {index + 1}", sentences, target, labels=labels))
    return documents


def _target(inputs: Inputs, index: int, words: re.Pattern[str] | None) -> tuple[str, ...]:
    """Return the target of a document: choices, or the second text, in words if an answer lies in it."""
    if inputs.choices is not None:  # all with a space before them, which the encoder adds to all but the first
        first, *others = inputs.choices[index]
        return (f" {first}", *others)
    if inputs.pairs is None:
        return ()
    return (inputs.pairs[index],) if words is None else tuple(words.findall(inputs.pairs[index]))


def _check_size(model: Model, values: int) -> None:
    """Require images with as many values as in training."""
    expected = model.topology.embedding.values_per_example or int(model.spec["dims"]["length"])
    if values != expected:
        message = f"an image has {values:,} values, but those of the training had {expected:,}"
        raise DataError(
            Problem(code="image-size-mismatch", path="images", message=message, valid="images of that size")
        )


def _check_choices(model: Model, name: str, choices: Sequence[Sequence[str]] | None) -> None:
    """Require choices if and only if the objective chooses, as many as in its training."""
    expects = model.objective(name).traits["predicts"] == "choice"
    if expects != (choices is not None):
        message = f"a model that was trained for {name} {'needs' if expects else 'has no use for'} choices"
        valid = "two or more `choices` (--choice), as many as in training" if expects else "texts without choices"
        raise SpecError(Problem(code="choices", path="choices", message=message, valid=valid))
    nodes = [node for node in as_list(model.spec["objective"]) if node["name"] == name]
    expected = nodes[0].get("choices") if nodes else None
    for number, names in enumerate(choices or (), start=1):
        if expected is not None and len(names) != expected:
            message = f"got {len(names)} choices, but {name} was trained with {expected}"
            raise SpecError(Problem(code="choices", path=f"text {number}", message=message, valid=str(expected)))


def _check_pairs(model: Model, name: str, count: int, pairs: Sequence[str] | None, registry: Registry) -> None:
    """Require second texts if and only if the model was trained on pairs."""
    traits = model.objective(name).traits
    reads_pairs: bool | None = traits["predicts"] == "answer" or traits.get("example_kind") == "segments"
    if not reads_pairs and model.spec.get("corpus") is not None:
        reads_pairs = provides(registry.index, model.spec["corpus"], "pairs")
    if reads_pairs and pairs is None:
        message = f"a model that was trained for {name} reads pairs of texts, and there is no second text"
        valid = "the second text of each: `pairs`, `--pair` or a second name in `--columns`"
        raise SpecError(Problem(code="no-pairs", path="pair", message=message, valid=valid))
    if pairs is not None and not reads_pairs:
        message = f"a model that was trained for {name} on single texts reads no pairs"
        raise SpecError(Problem(code="no-pairs", path="pair", message=message, valid="texts without a second one"))
    if pairs is not None and len(pairs) != count:
        message = f"expected the second text of each of {count:,} texts, got {len(pairs):,}"
        raise SpecError(Problem(code="no-pairs", path="pair", message=message, valid=f"{count:,} texts"))


def _by_likelihood(
    model: Model,
    inputs: Inputs,
    examples: Sequence[LabelledText],
    template: str | None,
    normalize: Normalize,
    batch: int,
) -> list[TextPrediction]:
    """Return the label of each text that a language model finds most likely after the examples."""
    names = list(dict.fromkeys(example.label for example in examples))
    labels = inputs.choices or as_choices(names, len(inputs.texts)) or ()
    pairs = inputs.pairs or [""] * len(inputs.texts)
    queries = [LabelledText(text, pair=pair) for text, pair in zip(inputs.texts, pairs, strict=True)]
    with evaluation_mode(model), torch.inference_mode():
        scores = label_likelihoods(
            model, queries, labels, examples, template=template, normalize=normalize, batch=batch
        )
    return [
        _as_label(query, dict(zip(row, values.tolist(), strict=True)), values.softmax(-1).tolist())
        for query, row, values in zip(queries, labels, scores, strict=True)
    ]


def _as_label(query: LabelledText, likelihoods: dict[str, float], shares: Sequence[float]) -> TextPrediction:
    best = max(likelihoods, key=likelihoods.__getitem__)
    probabilities = dict(zip(likelihoods, shares, strict=True))
    return TextPrediction(
        text=query.text,
        pair=query.pair or None,
        label=best,
        probability=probabilities[best],
        probabilities=probabilities,
        log_likelihoods=likelihoods,
    )


def _predictions(model: Model, name: str, documents: Sequence[Document], skipped: Counter[str]) -> Sequence[Prediction]:
    """Return the predictions for a few documents, whose examples are formed as in training."""
    objective = model.objective(name)
    tokens = encode_documents(documents, require_text(model).tokenizer)
    if len(tokens.documents) - 1 != len(documents):
        place = f"{documents[0].name} to {documents[-1].name}"
        message = f"{len(documents) + 1 - len(tokens.documents)} of them have a word without any token"
        raise DataError(Problem(code="no-token", path=place, message=message, valid="words that the tokenizer knows"))
    if tokens.labels is not None and model.text is not None:
        tokens.labels = tokens.labels._replace(names=model.text.classes)
    length = int(model.spec["dims"]["length"])
    skipped.update(objective.skipped_documents(tokens, length))
    examples = objective.form_texts(tokens, length)
    index = torch.arange(len(examples.streams["body"].tokens))
    run = model.run(move_batch(Batch(examples.streams, {name: examples.targets}, index), model.device), [name])
    return objective.predict(run.of(name), tokens)


def _class_names(model: Model, name: str) -> Sequence[str]:
    return model.objective(name).class_names or (model.text.classes if model.text is not None else ())


def _as_text(
    prediction: Prediction, text: str, pair: str | None, names: Sequence[str], words: re.Pattern[str]
) -> TextPrediction:
    """Return a prediction in the words of its text."""

    def named(index: int) -> str:
        return names[index] if index < len(names) else str(index)

    if prediction.classes:
        shares = {named(index): share for index, share in enumerate(prediction.classes)}
        best = max(shares, key=shares.__getitem__)
        return TextPrediction(text=text, pair=pair, label=best, probability=shares[best], probabilities=shares)
    if prediction.words:
        best_tags = [max(range(len(row)), key=row.__getitem__) for row in prediction.words]
        rows = zip(words.findall(text), best_tags, prediction.words, strict=True)
        return TextPrediction(
            text=text, pair=pair, tags=tuple(WordTag(word, named(tag), row[tag]) for word, tag, row in rows)
        )
    if prediction.answer is None:
        return TextPrediction(text=text, pair=pair, score=prediction.score)
    if prediction.answer == NO_ANSWER or pair is None:
        return TextPrediction(text=text, pair=pair, answer="", score=prediction.score)
    spans = [match.span() for match in words.finditer(pair)]
    start, end = spans[prediction.answer[0]][0], spans[prediction.answer[1]][1]
    return TextPrediction(text=text, pair=pair, answer=pair[start:end], start=start, score=prediction.score)
