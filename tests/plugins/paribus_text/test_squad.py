"""Files of SQuAD: answers, impossible questions, the words of contexts, and their texts as SQuAD's script sees them."""

import json
import random
import re
import string
from pathlib import Path
from typing import Any

import pytest
from tests.fixtures.problems import raises_problem

from paribus import DataError
from paribus_text.context_words import ARTICLE, EMPTY, Context
from paribus_text.squad import Squad

CONTEXT = "Anna Meyer (the mayor) was born in Rio-Nord in the 1920s."


def answer(text: str, start: int | None = None) -> dict[str, Any]:
    return {"text": text, "answer_start": CONTEXT.index(text) if start is None else start}


def write(path: str, *questions: tuple[str, list[dict[str, Any]]], **rest: Any) -> None:
    qas = [{"id": str(n), "question": text, "answers": answers, **rest} for n, (text, answers) in enumerate(questions)]
    data = {"version": "1.1", "data": [{"title": "T", "paragraphs": [{"context": CONTEXT, "qas": qas}]}]}
    Path(path).write_text(json.dumps(data))


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    write("train-v1.1.json", ("Who?", [answer("Anna Meyer"), answer("Anna")]), ("When? ", [answer("1920")]))
    write("dev-v1.1.json", ("Who is it?", [answer("the mayor"), answer("mayor"), answer("mayor")]))
    return tmp_path


def squad(**options: Any) -> Squad:
    return Squad(path=(".",), **options)


def test_training_has_one_answer_and_validation_all_with_the_texts() -> None:
    who, when = squad().documents("train")
    words = "Anna Meyer ( the mayor ) was born in Rio - Nord in the 1920s ."
    assert (who.text, " ".join(who.target), who.labels) == ("Who?", words, (0, 1))
    assert when.labels == (14, 14)  # a part of a word is widened to it
    (val,) = squad().documents("val")
    assert val.labels[:5] == (3, 4, 4, 4, -3)  # without the repeated one
    assert len(val.labels) == 5 + len(val.target)
    assert val.labels[5:] == Context(CONTEXT).numbers
    assert squad().skipped_inputs() == {"answers that are a part of a word, widened to the word": 1}


def test_an_impossible_question_has_no_answer() -> None:
    plausible = [{"text": "Anna", "answer_start": 0}]
    write("dev-v1.1.json", ("Where?", []), ("What?", []), is_impossible=True, plausible_answers=plausible)
    assert [document.labels[:3] for document in squad().documents("val")] == [(-1, -1, -3)] * 2


def test_wrong_answers_are_dropped_and_counted() -> None:
    write("dev-v1.1.json", ("One?", [answer("Anna", 1)]), ("Two?", [answer("Anna", 3), answer("Anna")]), ("Three?", []))
    assert [document.text for document in squad().documents("val")] == ["Two?"]
    assert squad().skipped_inputs() == {
        "answers that are a part of a word, widened to the word": 1,
        "answers that are not at their place in the context": 2,
        "questions without an answer that are not marked as impossible": 2,
    }


def official(text: str) -> list[str]:
    """`normalize_answer` of SQuAD's script, and its `split`."""
    text = "".join(letter for letter in text.lower() if letter not in set(string.punctuation))
    return re.sub(r"\b(a|an|the)\b", " ", text).split()


def texts_of(numbers: list[float], words: list[str]) -> list[str]:
    """The words that numbers stand for: glued to the word before if negative."""
    groups: list[str] = []
    for place, (number, word) in enumerate(zip(numbers, words, strict=True)):
        if number > 0 or place == 0:
            groups.append("")
        groups[-1] += "" if abs(number) == EMPTY else word.lower()
    return [group for group in groups if group not in ("", "a", "an", "the")]


def test_words_and_spaces_are_those_of_the_script_of_squad() -> None:
    draw = random.Random(0)
    pieces = ["The", "a", "An", "U.S.", "twenty-one", "(1999),", "don't", "§", "«B»", "Ann", "$5", "x", "\u200bY"]
    for _ in range(50):
        text = " ".join(draw.choices(pieces, k=8))
        context = Context(text)
        first, last = sorted(draw.choices(range(len(context.words)), k=2))
        start, stop = (context._starts[first], context._stops[last])
        found = texts_of(list(context.numbers[first : last + 1]), list(context.words[first : last + 1]))
        expected = official(text[start:stop].replace("\u200b", ""))
        assert [re.sub("[.'-]", "", word) for word in found] == expected
        assert context.words_of(start, stop) == (first, last, False)


def test_numbers_are_equal_for_equal_words_only() -> None:
    numbers = Context("Word word, WORD the An a . “ word's").numbers
    assert abs(numbers[0]) == numbers[1] == numbers[3]
    assert numbers[4:7] == (ARTICLE,) * 3
    assert numbers[7] == EMPTY
    assert len({abs(number) for number in numbers}) == 5  # word, none, an article, a quotation mark, s
    assert Context("").words == ()


def test_files_in_another_format_are_refused_with_the_place() -> None:
    Path("dev-v1.1.json").write_text('{"data": [{"paragraphs": [{"context": "Text.", "qas": [{"id": "1"}]}]}]}')
    with raises_problem(DataError, "missing-field", "dev-v1.1.json", "question", "data.0.paragraphs.0.qas.0"):
        squad().fingerprint()
    Path("dev-v1.1.json").write_text("[1")
    with raises_problem(DataError, "broken-json", "dev-v1.1.json"):
        squad().fingerprint()
    Path("dev-v1.1.json").write_text('{"rows": []}')
    with raises_problem(DataError, "missing-field", "data", "the file"):
        squad().fingerprint()
    Path("dev-v2.0.json").write_text("{}")
    with raises_problem(DataError, "missing-file", "found 2", "dev-v1.1.json"):
        squad().fingerprint()


def test_without_a_validation_file_questions_are_held_out() -> None:
    write("all.json", *((f"Who {number}?", [answer("Anna Meyer")]) for number in range(20)))
    corpus = Squad(path=("all.json",), held_out=0.3)
    train, val = (list(corpus.documents(split)) for split in ("train", "val"))
    assert len(train) + len(val) == 20
    assert {len(document.labels) for document in train} == {2}
    assert {len(document.labels) for document in val} == {3 + len(val[0].target)}
