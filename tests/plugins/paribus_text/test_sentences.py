"""Segmentation of text into sentences and paragraphs."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paribus_text.sentences import paragraphs, sentences


@given(st.text())
def test_sentences_joined_by_a_space_are_the_paragraph(text: str) -> None:
    assert " ".join(sentences(text)) == " ".join(text.split())


@pytest.mark.thorough
@given(st.lists(st.text(st.characters(exclude_categories=["C", "Z"]), min_size=1), min_size=1))
def test_blank_lines_separate_paragraphs(parts: list[str]) -> None:
    assert paragraphs("\n \n".join(parts)) == parts


def test_a_paragraph_keeps_its_lines_and_their_indentation() -> None:
    assert paragraphs("\n\n  if a:\n    b\n\n\n\nprose\n") == ["  if a:\n    b", "prose"]


def test_a_blank_text_has_no_paragraphs_and_no_sentences() -> None:
    assert paragraphs(" \n\n \t\n") == []
    assert sentences(" \n ") == []


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("One. Two.", ["One.", "Two."]),
        ("Really? Yes! So…  Then", ["Really?", "Yes!", "So…", "Then"]),
        ('He said "no." "Why?" she asked.', ['He said "no."', '"Why?" she asked.']),
        ("It was (see below.) Then it went.", ["It was (see below.)", "Then it went."]),
        ("Pi is 3.14. It is no whole number.", ["Pi is 3.14.", "It is no whole number."]),
        ("Some, e.g. Berlin, i.e. Germany, cf. Fig. 2.", ["Some, e.g. Berlin, i.e. Germany, cf. Fig. 2."]),
        ("Lists, tuples, etc. They are sequences.", ["Lists, tuples, etc.", "They are sequences."]),
        ("Then J. S. Bach came, with Dr. Smith.", ["Then J. S. Bach came, with Dr. Smith."]),
        ("This is module a. It is short.", ["This is module a.", "It is short."]),
        ("and so on... but it went on", ["and so on... but it went on"]),
        ("Äpfel. Öl. Ünd.", ["Äpfel.", "Öl.", "Ünd."]),
    ],
)
def test_sentences_end_at_final_punctuation_but_not_at_abbreviations(text: str, expected: list[str]) -> None:
    assert sentences(text) == expected
