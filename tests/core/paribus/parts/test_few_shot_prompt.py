"""Text of few-shot prompts."""

import pytest
from tests.fixtures.problems import raises_problem

from paribus import FewShotFormat, LabelledText, SpecError

SHOTS = [LabelledText("It was fun.", "good"), LabelledText("Too {text} long", "bad")]


def test_a_prompt_ends_before_the_label_of_its_last_text() -> None:
    layout = FewShotFormat("Review: {text}\nMood: {label}", "\n\n")
    assert layout.prompt(SHOTS, LabelledText("Fine.")) == (
        "Review: It was fun.\nMood: good\n\nReview: Too {text} long\nMood: bad\n\nReview: Fine.\nMood: "
    )
    assert layout.prompt([], LabelledText("Fine.", "good")) == "Review: Fine.\nMood: "
    assert layout.example(SHOTS[0]) == "Review: It was fun.\nMood: good"
    assert not layout.reads_pairs


def test_a_pair_has_both_texts() -> None:
    layout = FewShotFormat("{text} / {pair} = {label}", "\n")
    assert layout.reads_pairs
    assert layout.prompt([LabelledText("a", "yes", "b")], LabelledText("c", pair="d")) == "a / b = yes\nc / d = "


@pytest.mark.parametrize(
    "template",
    [
        "",
        "{text}",
        "{label}",
        "{label} {text}",
        "{text} {label}.",
        "{text} {text} {label}",
        "{pair}{text}{pair}{label}",
    ],
)
def test_a_template_has_the_text_once_and_ends_with_the_label(template: str) -> None:
    with raises_problem(SpecError, "invalid-template", "measure.template"):
        FewShotFormat(template, "\n", "measure.template")
