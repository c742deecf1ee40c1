"""Predictions for new texts, compared with the metrics that the same model has on the same texts as a corpus."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from tests.fixtures.problems import raises_problem

import paribus
from paribus.errors import ParibusError
from paribus.models.evaluate import evaluate
from paribus.models.lightning_module import Model
from paribus.parts.batch import Stream
from paribus.registry import index
from paribus.slots.corpus import Tokens
from paribus.specs.training_rules import provides
from paribus_text.derived import words

Randomised = Callable[..., Model]
TRUNCATED = pytest.mark.filterwarnings("ignore:.*truncated from")
SMALL = ("dims.width=16", "dims.layers=1", "dims.heads=2", "data.batch=8", "trainer.max_steps=1", "tokenizer=bytes")
TASKS = {
    "classes": ("bert-tiny", "objective={name: classify, classes: 6}", "corpus=sections", "dims.length=48"),
    "classes of pairs": ("bert-tiny", "objective=classify", "corpus=follows", "dims.length=64"),
    "a causal model": ("gpt-tiny", "objective=classify-causal", "corpus=word-order", "dims.length=48"),
    "a causal model of pairs": ("gpt-tiny", "objective=classify-causal", "corpus=follows", "dims.length=48"),
    "scores": ("bert-tiny", "objective=regress", "corpus=overlap", "dims.length=64"),
    "tags": ("bert-tiny", "objective=tag", "corpus=code-words", "dims.length=24"),
    "answers": (
        "bert-tiny",
        "objective={name: extract, stride: 9, max_question_length: 20}",
        "corpus=cloze",
        "dims.length=48",
    ),
}  # fmt: skip


class Row(NamedTuple):
    """Document of the validation split, as text again."""

    text: str
    pair: str | None
    labels: list[int]


def rows_of(model: Model) -> tuple[list[Row], dict[str, float]]:
    """Return the validation split as text, and the metrics of the model on it."""
    data = paribus.data(model.spec)
    tokens, tokenizer = data.encoded.val, data.encoded.tokenizer
    assert tokens.labels is not None

    def text(side: Tokens, index: int) -> str:
        bounds = np.asarray(side.sentences)[np.asarray(side.documents)]
        return tokenizer.decode(list(side.ids[bounds[index] : bounds[index + 1]]))

    ends = tokens.labels.documents
    rows = [
        Row(
            text(tokens, index),
            None if tokens.targets is None else text(tokens.targets, index),
            tokens.labels.values[ends[index] : ends[index + 1]].astype(int).tolist(),
        )
        for index in range(len(tokens.documents) - 1)
    ]
    return rows, evaluate(model, data)


def names_of(model: Model) -> Sequence[str]:
    assert model.text is not None
    return model.text.classes or [str(number) for number in range(10)]


def columns(rows: Sequence[Row]) -> tuple[list[str], list[str] | None]:
    return [row.text for row in rows], None if rows[0].pair is None else [str(row.pair) for row in rows]


@pytest.fixture(scope="module")
def randomised() -> Randomised:
    models: dict[tuple[str, ...], Model] = {}

    def model_of(*words: str) -> Model:
        """Return a model with random weights that are large enough to predict several classes."""
        if words not in models:
            spec = paribus.spec(*words, *SMALL, "data.validation=1000000")
            model = paribus.assemble(spec)
            with torch.no_grad():
                for parameter in model.parameters():
                    parameter.add_(torch.randn_like(parameter) * 0.3)
            models[words] = model
        return models[words]

    return model_of


@TRUNCATED
@pytest.mark.few(1)
@pytest.mark.parametrize("task", ["classes", "classes of pairs", "a causal model", "a causal model of pairs"])
def test_predicted_classes_have_the_accuracy_of_the_evaluation(task: str, randomised: Randomised) -> None:
    model = randomised(*TASKS[task])
    rows, metrics = rows_of(model)
    predictions = paribus.predict(model, *columns(rows), batch=50)
    names = names_of(model)
    hits = [prediction.label == names[row.labels[0]] for prediction, row in zip(predictions, rows, strict=True)]
    assert len(hits) > 50
    assert len({prediction.label for prediction in predictions}) > 1
    assert sum(hits) / len(hits) == pytest.approx(metrics[f"val/{model.trained[0]}/accuracy"], abs=1e-6)
    for prediction, row in zip(predictions, rows, strict=True):
        assert prediction.probabilities is not None
        assert sum(prediction.probabilities.values()) == pytest.approx(1)
        assert prediction.probability == max(prediction.probabilities.values())
        assert (prediction.text, prediction.pair) == (row.text, row.pair)


@TRUNCATED
@pytest.mark.thorough
def test_predicted_scores_are_those_of_the_head(randomised: Randomised) -> None:
    model = randomised(*TASKS["scores"])
    rows, metrics = rows_of(model)
    predictions = paribus.predict(model, *columns(rows))
    scores = torch.tensor([prediction.score for prediction in predictions], dtype=torch.float64)
    data = paribus.data(model.spec)
    tokens = data.encoded.val
    assert tokens.labels is not None
    labels = torch.tensor(tokens.labels.values.tolist(), dtype=torch.float64)
    assert float((scores - labels).square().mean()) == pytest.approx(metrics["val/regress/loss"], rel=1e-4)


@TRUNCATED
def test_predicted_tags_have_the_accuracy_of_the_evaluation(randomised: Randomised) -> None:
    """Also of texts that are split into several examples."""
    model = randomised(*TASKS["tags"])
    rows, metrics = rows_of(model)
    predictions = paribus.predict(model, [row.text for row in rows], split="spaces", batch=9)
    names, hits = names_of(model), []
    for prediction, row in zip(predictions, rows, strict=True):
        assert prediction.tags is not None
        assert [tag.word for tag in prediction.tags] == row.text.split()
        hits += [tag.label == names[label] for tag, label in zip(prediction.tags, row.labels, strict=True)]
    assert max(len(row.text) for row in rows) > 24 * 2
    assert sum(hits) / len(hits) == pytest.approx(metrics["val/tag/accuracy"], abs=1e-6)


def test_an_answer_is_the_span_with_the_best_scores(randomised: Randomised) -> None:
    """Against loops over all spans of a context that fits in one window, widened to whole words."""
    model = randomised(*TASKS["answers"])
    assert model.text is not None
    question, context = "What is it?", "It is  a\nlist of names."
    marks = model.text.vocabulary.specials
    first, words = model.text.encode(question), context.split()
    second = model.text.encode(" ".join(words))
    ids = [marks["cls"], *first, marks["sep"], *second, marks["sep"]]
    segments = [0] * (len(first) + 2) + [1] * (len(second) + 1)
    stream = Stream(torch.tensor([ids]), segments=torch.tensor([segments]))
    with torch.inference_mode():
        hidden = model.eval().topology.run({"body": stream}, "body").hidden
        start, end = model.objective("extract").logits(hidden, model.topology.embedding.unembed)[0].double().unbind(-1)
    begin = len(first) + 2
    best = max(
        (float(start[one] + end[other]), one - begin, other - begin)
        for one in range(begin, begin + len(second))
        for other in range(one, min(one + 30, begin + len(second)))
    )
    word_of = [number for number, word in enumerate(words) for _ in range(len(word) + (number > 0))]  # of each byte
    spans = [match.span() for match in re.finditer(r"\S+", context)]
    (prediction,) = paribus.predict(model, question, context, split="spaces")
    assert prediction.score is not None
    assert prediction.score == pytest.approx(best[0] - float(start[0] + end[0]), abs=1e-4)
    answer = context[spans[word_of[best[1]]][0] : spans[word_of[best[2]]][1]]
    assert prediction.answer == (answer if prediction.score >= 0 else "")


@TRUNCATED
@pytest.mark.thorough
def test_answers_lie_in_their_contexts_also_in_windows(randomised: Randomised) -> None:
    model = randomised(*TASKS["answers"])
    rows, _ = rows_of(model)
    predictions = paribus.predict(model, *columns(rows[:60]))
    for prediction, row in zip(predictions, rows[:60], strict=True):
        assert prediction.answer is not None
        assert prediction.score is not None
        assert bool(prediction.answer) == (prediction.score >= 0)
        if prediction.answer:
            assert prediction.start is not None
            assert str(row.pair)[prediction.start :].startswith(prediction.answer)
    assert any(prediction.answer for prediction in predictions)
    assert max(len(str(row.pair)) for row in rows[:60]) > 48 * 2


def test_punctuation_marks_are_words_as_in_the_corpora(randomised: Randomised) -> None:
    text = "The cat's tail, e.g. its (grey) tip, isn't well-known."
    (prediction,) = paribus.predict(randomised(*TASKS["tags"]), text)
    assert [tag.word for tag in prediction.tags or ()] == words(text)
    assert words(text)[1:4] == ["cat's", "tail", ","]


def test_a_model_that_scores_entities_predicts_tags(randomised: Randomised, tmp_path: Path) -> None:
    path = tmp_path / "tags.txt"
    path.write_text("".join(f"Word{number} B-NAME\nis O\nnumber O\n{number} O\n\n" for number in range(60)))
    corpus = f"corpus={{name: conll, path: [{path}], held_out: 0.2}}"
    model = randomised("bert-tiny", "objective={name: tag, classes: 2, entities: true}", corpus, "dims.length=48")
    (prediction,) = paribus.predict(model, "Word3 is number 3")
    assert [tag.word for tag in prediction.tags or ()] == ["Word3", "is", "number", "3"]
    assert {tag.label for tag in prediction.tags or ()} <= {"B-NAME", "O"}


def test_no_answer_is_predicted_below_the_threshold(randomised: Randomised) -> None:
    preset, objective, *words = TASKS["answers"]
    strict = objective.replace("stride", "null_threshold: -1e9, stride")
    (prediction,) = paribus.predict(randomised(preset, strict, *words), "What is it?", "It is a list of names.")
    assert (prediction.answer, prediction.start) == ("", None)


@pytest.mark.parametrize(("objective", "names"), [("nsp", {"next", "other"}), ("sop", {"in order", "swapped"})])
def test_pairs_of_segments_are_laid_out_as_in_training(objective: str, names: set[str], randomised: Randomised) -> None:
    """Against a forward pass of `[cls] A [sep] B [sep]` written out."""
    model = randomised("bert-tiny", f"objective=[mlm, {objective}]", "dims.length=48")
    assert model.text is not None
    (prediction,) = paribus.predict(model, "One text.", "Another one.")
    marks = model.text.vocabulary.specials
    first, second = (model.text.encode(text) for text in ("One text.", "Another one."))
    ids = [marks["cls"], *first, marks["sep"], *second, marks["sep"]]
    segments = [0] * (len(first) + 2) + [1] * (len(second) + 1)
    stream = Stream(torch.tensor([ids]), segments=torch.tensor([segments]))
    with torch.inference_mode():
        hidden = model.eval().topology.run({"body": stream}, "body").hidden
        shares = model.objective(objective).logits(hidden[:, 0], model.topology.embedding.unembed)[0].softmax(-1)
    assert prediction.probabilities is not None
    assert set(prediction.probabilities) == names
    assert list(prediction.probabilities.values()) == pytest.approx(shares.tolist(), abs=1e-5)


def test_a_text_is_predicted_alike_in_any_batch(randomised: Randomised) -> None:
    model = randomised(*TASKS["classes"])
    texts = ["One.", "Another text, which is longer.", "A third text. " * 9]
    with pytest.warns(UserWarning, match="80 tokens truncated"):
        together = paribus.predict(model, texts)
    alone = [paribus.predict(model, text[:46])[0] for text in texts]
    for one, other in zip(together, alone, strict=True):
        assert one.label == other.label
        assert one.probability == pytest.approx(other.probability, abs=1e-5)


@pytest.mark.parametrize(
    ("corpus", "has_pairs"),
    [
        ({"name": "glue", "task": "mrpc", "path": ["x"]}, True),
        ({"name": "glue", "task": "sst-2", "path": ["x"]}, False),
        ({"name": "table", "second": "b"}, True),
        ({"name": "table", "second": None}, False),
        ({"name": "follows"}, True),
        ({"name": "sections"}, False),
    ],
)
def test_the_corpus_of_a_model_decides_whether_it_reads_pairs(corpus: dict[str, Any], has_pairs: bool) -> None:
    assert provides(index(), corpus, "pairs") == has_pairs


REFUSED = {
    "a language model": (("gpt-tiny",), (), {}, "cannot-predict", ("clm",)),
    "another objective": (TASKS["classes"], (), {"objective": "clasify"}, "cannot-predict", ("classify",)),
    "an objective without labels": (
        ("bert-tiny", "objective=[mlm, nsp]"), ("A",), {"objective": "mlm"}, "cannot-predict", ("mlm",)
    ),
    "a missing pair": (TASKS["classes of pairs"], (), {}, "no-pairs", ("second text",)),
    "a pair too many": (TASKS["classes"], ("A",), {}, "no-pairs", ("single texts",)),
    "too few pairs": (TASKS["classes of pairs"], (["A", "B"],), {}, "no-pairs", ("1", "2")),
    "a question without a context": (TASKS["answers"], (), {}, "no-pairs", ("second text",)),
    "an empty text": (TASKS["classes of pairs"], (" ",), {}, "empty-prompt", ("pair 1",)),
    "no batch": (TASKS["classes"], (), {"batch": 0}, "out-of-range", ("batch",)),
}  # fmt: skip


@pytest.mark.parametrize(("words", "pairs", "options", "code", "values"), REFUSED.values(), ids=REFUSED)
def test_what_cannot_be_predicted_is_refused(
    words: tuple[str, ...],
    pairs: tuple[Any, ...],
    options: dict[str, Any],
    code: str,
    values: tuple[str, ...],
    randomised: Randomised,
) -> None:
    with raises_problem(ParibusError, code, *values):
        paribus.predict(randomised(*words), "A text.", *pairs, **options)


QUESTION, ENDINGS = "The sun rises.", ("It is hot.", "A cat.", "Then it sets.")
CHOOSING = {
    "choose": ("bert-tiny", "objective={name: choose, choices: 3}", "corpus={name: continuations, choices: 3}"),
    "choose-causal": (
        "gpt-tiny", "objective={name: choose-causal, choices: 3}", "corpus={name: continuations, choices: 3}"
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CHOOSING)
def test_the_best_choice_is_that_of_the_scores_of_each_choice_alone(name: str, randomised: Randomised) -> None:
    """Against a forward pass of `[cls] context [sep] choice [sep]`, or of `[bos] context [sep] choice [cls]`."""
    model = randomised(*CHOOSING[name], "dims.length=120")
    (prediction,) = paribus.predict(model, QUESTION, choices=ENDINGS)
    assert model.text is not None
    marks = model.text.vocabulary.specials
    start, end = (marks["cls"], marks["sep"]) if name == "choose" else (marks["bos"], marks["cls"])
    scores = []
    for ending in ENDINGS:
        first, second = model.text.encode(QUESTION), model.text.encode(f" {ending}")
        ids = [start, *first, marks["sep"], *second, end]
        segments = [0] * (len(first) + 2) + [1] * (len(second) + 1)
        stream = Stream(torch.tensor([ids]), segments=torch.tensor([segments]))
        with torch.inference_mode():
            hidden = model.eval().topology.run({"body": stream}, "body").hidden
            place = hidden[:, 0 if name == "choose" else -1]
            scores.append(float(model.objective(name).logits(place, model.topology.embedding.unembed)))
    shares = torch.tensor(scores).softmax(-1).tolist()
    assert prediction.label == ENDINGS[scores.index(max(scores))]
    assert prediction.probabilities == pytest.approx(dict(zip(ENDINGS, shares, strict=True)), abs=1e-5)
    assert prediction.probability == max(prediction.probabilities.values())  # type: ignore[union-attr]  # checked above


@TRUNCATED
@pytest.mark.thorough
def test_predicted_choices_have_the_accuracy_of_the_evaluation(randomised: Randomised) -> None:
    model = randomised(*CHOOSING["choose"], "dims.length=120")
    data = paribus.data(model.spec)
    corpus = paribus.installed().get("corpus", "continuations")(choices=3)
    documents = list(corpus.documents("val"))
    texts = [document.text for document in documents]
    choices = [[choice.strip() for choice in document.target] for document in documents]
    predictions = paribus.predict(model, texts, choices=choices, batch=7)
    hits = [
        prediction.label == row[int(document.labels[0])]
        for prediction, row, document in zip(predictions, choices, documents, strict=True)
    ]
    assert sum(hits) / len(hits) == pytest.approx(evaluate(model, data)["val/choose/accuracy"], abs=1e-6)


REFUSED_CHOICES = {
    "no choices": (CHOOSING["choose"], {}, "choices", ("choose",)),
    "too few": (CHOOSING["choose"], {"choices": ("a", "b")}, "choices", ("2", "3")),
    "one twice": (CHOOSING["choose"], {"choices": ("a", "b", "a")}, "choices", ("text 1",)),
    "an empty one": (CHOOSING["choose"], {"choices": ("a", "b", " ")}, "choices", ("text 1",)),
    "two lists for one text": (CHOOSING["choose"], {"choices": [["a", "b", "c"]] * 2}, "choices", ("1", "2")),
    "for a class": (TASKS["classes"], {"choices": ("a", "b"), "objective": "classify"}, "choices", ("classify",)),
    "a template for a head": (TASKS["classes"], {"template": "{text}{label}"}, "unused-option", ("template",)),
}


@pytest.mark.parametrize(("words", "options", "code", "values"), REFUSED_CHOICES.values(), ids=REFUSED_CHOICES)
def test_choices_that_do_not_fit_the_model_are_refused(
    words: tuple[str, ...], options: dict[str, Any], code: str, values: tuple[str, ...], randomised: Randomised
) -> None:
    length = () if any(word.startswith("dims") for word in words) else ("dims.length=120",)
    with raises_problem(ParibusError, code, *values):
        paribus.predict(randomised(*words, *length), "A text.", **options)


@pytest.fixture(scope="module")
def vision() -> Model:
    model = paribus.assemble(paribus.spec("vit-tiny", "dims.width=16", "dims.layers=1", "dims.heads=2"))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=torch.Generator().manual_seed(3)) * 0.3)
    return model


def test_classes_of_images_are_those_of_a_forward_pass(vision: Model) -> None:
    images = np.random.default_rng(0).integers(0, 256, (5, 16, 16)).astype(np.uint8)
    predictions = paribus.predict(vision, images, batch=2)
    with torch.inference_mode():
        stream = Stream(torch.from_numpy(images.reshape(5, -1)))
        hidden = vision.eval().topology.run({"body": stream}, "body").hidden[:, 0]
        shares = vision.objective("image-classify").logits(hidden, vision.topology.embedding.unembed).softmax(-1)
    for prediction, row, number in zip(predictions, shares.tolist(), range(1, 6), strict=True):
        assert list((prediction.probabilities or {}).values()) == pytest.approx(row, abs=1e-5)
        assert prediction.text == f"image {number}"
    one, other = paribus.predict(vision, [images[0][..., None], images[1][..., None].astype(float)])
    assert (one.label, other.label) == (predictions[0].label, predictions[1].label)


REFUSED_IMAGES: dict[str, tuple[Any, dict[str, Any], str, tuple[str, ...]]] = {
    "a text": ("A text.", {}, "other-modality", ("images", "texts")),
    "another size": (np.zeros((1, 8, 8), np.uint8), {}, "image-size-mismatch", ("64", "256")),
    "two sizes": ([np.zeros((16, 16), np.uint8), np.zeros((8, 8), np.uint8)], {}, "image-size-mismatch", ("images",)),
    "a vector": ([np.zeros(256, np.uint8)], {}, "not-an-image", ("image 1",)),
    "fractions": (np.full((1, 16, 16), 0.5), {}, "not-an-image", ("image 1", "float64")),
    "large values": (np.full((1, 16, 16), 300), {}, "not-an-image", ("image 1",)),
    "choices": (np.zeros((1, 16, 16), np.uint8), {"choices": ["a", "b"]}, "unused-option", ("images",)),
    "examples": (np.zeros((1, 16, 16), np.uint8), {"examples": [("a", "b")]}, "unused-option", ("examples",)),
}


@pytest.mark.parametrize(("images", "options", "code", "values"), REFUSED_IMAGES.values(), ids=REFUSED_IMAGES)
def test_what_is_no_image_of_the_training_is_refused(
    images: Any, options: dict[str, Any], code: str, values: tuple[str, ...], vision: Model
) -> None:
    with raises_problem(ParibusError, code, *values):
        paribus.predict(vision, images, **options)


def test_a_model_of_texts_reads_no_images(randomised: Randomised) -> None:
    with raises_problem(ParibusError, "other-modality", "classify"):
        paribus.predict(randomised(*TASKS["classes"]), np.zeros((1, 16, 16), np.uint8))
