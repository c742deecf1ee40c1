"""Labels that a language model predicts after examples, against a forward pass for each label in float64."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tests.fixtures.problems import raises_problem

import paribus
from paribus.errors import ParibusError
from paribus.models.lightning_module import Model
from paribus.parts.batch import Stream

SMALL = ("dims.width=16", "dims.layers=1", "dims.heads=2", "dims.length=96", "data.batch=8", "tokenizer=bytes")
EXAMPLES = [("It was fun.", "good"), ("Too long.", "poor"), ("I slept.", "poor")]
TEXTS = ["I laughed.", "It ended well, at last."]


def assembled(*words: str) -> Model:
    model = paribus.assemble(paribus.spec(*words, *SMALL)).double().eval()
    with torch.no_grad():
        for path, parameter in model.named_parameters():
            generator = torch.Generator().manual_seed(len(path))
            parameter.add_(torch.randn(parameter.shape, generator=generator, dtype=torch.float64), alpha=0.3)
    return model


@pytest.fixture(scope="module")
def model() -> Model:
    return assembled("gpt-tiny")


def log_likelihood(model: Model, prompt: str, label: str) -> float:
    """Sum the logarithms of the shares of the bytes of a label, from one pass over the concatenated ids."""
    ids = [*(prompt + label).encode()]
    with torch.inference_mode():
        hidden = model.topology.run({"body": Stream(torch.tensor([ids]))}, "body").hidden
        shares = model.objective("clm").logits(hidden, model.topology.embedding.unembed)[0].log_softmax(-1)
    return sum(float(shares[position - 1, ids[position]]) for position in range(len(prompt.encode()), len(ids)))


@pytest.mark.parametrize("shots", [1, 3])
@pytest.mark.parametrize("batch", [1, 32])
def test_the_predicted_label_has_the_highest_likelihood(model: Model, shots: int, batch: int) -> None:
    labels = ["good", "poor"]
    predictions = paribus.predict(model, TEXTS, choices=labels, examples=EXAMPLES[:shots], batch=batch)
    lines = "".join(f"{text} : {label}\n" for text, label in EXAMPLES[:shots])
    for prediction, text in zip(predictions, TEXTS, strict=True):
        expected = {label: log_likelihood(model, f"{lines}{text} :", f" {label}") for label in labels}
        assert prediction.log_likelihoods == pytest.approx(expected, abs=1e-9)
        assert prediction.label == max(expected, key=expected.__getitem__)
        shares = torch.tensor(list(expected.values()), dtype=torch.float64).softmax(-1)
        assert list((prediction.probabilities or {}).values()) == pytest.approx(shares.tolist())
        assert prediction.text == text


def test_the_labels_are_those_of_the_examples_in_order(model: Model) -> None:
    (prediction,) = paribus.predict(model, TEXTS[0], examples=EXAMPLES)
    assert list(prediction.probabilities or {}) == ["good", "poor"]
    (other,) = paribus.predict(model, TEXTS[0], examples=EXAMPLES, choices=("poor", "good", "fine"))
    assert list(other.probabilities or {}) == ["poor", "good", "fine"]


def test_without_examples_choices_are_endings_of_the_text(model: Model) -> None:
    endings = [["and left.", "or so."], ["by ten.", "an hour ago!"]]
    predictions = paribus.predict(model, TEXTS, choices=endings, normalize="bytes")
    for prediction, text, row in zip(predictions, TEXTS, endings, strict=True):
        expected = {ending: log_likelihood(model, text, f" {ending}") / len(ending) for ending in row}
        assert prediction.log_likelihoods == pytest.approx(expected, abs=1e-9)


def test_pairs_and_a_template_of_the_user(model: Model) -> None:
    (prediction,) = paribus.predict(
        model, "a", "b", examples=[("c", "yes", "d")], choices=["yes", "not"], template="{text}/{pair}={label}"
    )
    expected = {label: log_likelihood(model, "c/d=yes\na/b=", label) for label in ("yes", "not")}
    assert prediction.log_likelihoods == pytest.approx(expected, abs=1e-9)
    assert (prediction.text, prediction.pair) == ("a", "b")


REFUSED: dict[str, tuple[dict[str, Any], str, tuple[str, ...]]] = {
    "a long prompt": ({"examples": EXAMPLES * 3}, "too-long", ("text 1", "96", "9")),
    "one label": ({"examples": EXAMPLES[1:]}, "choices", ("'poor'",)),
    "no label": ({"examples": []}, "choices", ("none",)),
    "an empty label": ({"examples": [("a", "")]}, "invalid-example", ("example 1",)),
    "a label that begins another": ({"examples": [("a", "no"), ("b", "not")]}, "labels", ("'no'", "'not'")),
    "a pair without a second text": ({"examples": [("a", "x", "b"), ("b", "y", "c")]}, "no-pairs", ("2",)),
    "a template without a label": ({"examples": EXAMPLES, "template": "{text}"}, "invalid-template", ("template",)),
    "a template for pairs": ({"examples": EXAMPLES, "template": "{text}{pair}{label}"}, "invalid-template", ("pair",)),
    "another size": ({"examples": EXAMPLES, "normalize": "words"}, "out-of-range", ("normalize",)),
    "an objective": ({"examples": EXAMPLES, "objective": "clm"}, "unused-option", ("objective",)),
}


@pytest.mark.parametrize(("options", "code", "values"), REFUSED.values(), ids=REFUSED)
def test_prompts_that_cannot_be_scored_are_refused(
    model: Model, options: dict[str, Any], code: str, values: tuple[str, ...]
) -> None:
    with raises_problem(ParibusError, code, *values):
        paribus.predict(model, "A text.", **options)


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (("bert-tiny", "objective=mlm"), "cannot-write"),
        (("seq2seq-tiny",), "cannot-predict"),
        (("gpt-tiny", "objective=prefix-lm"), "cannot-predict"),
    ],
)
def test_only_language_models_that_continue_a_text_read_examples(words: tuple[str, ...], code: str) -> None:
    with raises_problem(ParibusError, code):
        paribus.predict(assembled(*words), "A text.", examples=EXAMPLES)
