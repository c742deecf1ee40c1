"""Files of SWAG and COPA, and continuations of the language reference."""

import json
from pathlib import Path
from typing import Any

import pytest
from tests.fixtures.problems import raises_problem

from paribus import DataError, Document
from paribus_text.continuations import Continuations
from paribus_text.multiple_choice import MultipleChoice
from paribus_text.reference import Reference

HEADER = ",video-id,fold-ind,startphrase,sent1,sent2,gold-source,ending0,ending1,ending2,ending3,label"
SWAG = '0,v,1,A man opens it. He,"A man opens it, slowly.",He,gold,"walks, in.",sings.,runs.,cooks.,{}'
COPA = {"premise": "It rained.", "choice1": "It is wet.", "choice2": "It is dry.", "question": "effect", "label": 0}


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for name, rows in (("train", [SWAG.format(0)]), ("val", [SWAG.format(3).replace("A man opens", "A boy opens")])):
        Path(f"{name}.csv").write_text("\n".join([HEADER, *rows, ""]))
    return tmp_path


def read(task: Any, split: Any = "train") -> list[Document]:
    return list(MultipleChoice(task=task, path=(".",)).documents(split))


def test_a_choice_of_swag_is_the_start_with_an_ending() -> None:
    (document,) = read("swag")
    assert document.text == "A man opens it, slowly."
    assert document.target == (" He walks, in.", "He sings.", "He runs.", "He cooks.")
    assert document.labels == (0,)
    (val,) = read("swag", "val")
    assert (val.text, val.labels) == ("A boy opens it, slowly.", (3,))


def test_the_context_of_copa_ends_with_its_question() -> None:
    Path("train.jsonl").write_text(json.dumps(COPA))
    Path("val.jsonl").write_text(json.dumps({**COPA, "question": "cause", "label": 1}))
    (train,), (val,) = read("copa"), read("copa", "val")
    assert train.text == "It rained. What happened as a result?"
    assert (train.target, train.labels) == ((" It is wet.", "It is dry."), (0,))
    assert (val.text, val.labels) == ("It rained. What was the cause of this?", (1,))


def test_invalid_rows_are_refused_or_counted() -> None:
    Path("val.csv").write_text("\n".join([HEADER, SWAG.format(4), ""]))
    with raises_problem(DataError, "missing-label", "val.csv:2", "'4'", "0 to 3"):
        read("swag")
    Path("val.csv").write_text("\n".join([HEADER.replace("ending3", "end"), SWAG.format(1), ""]))
    with raises_problem(DataError, "missing-field", "val.csv:1", "ending3"):
        read("swag")
    rows = [SWAG.format(""), SWAG.format(0).replace("He,gold", ",gold").replace("runs.", ""), SWAG.format(2)]
    Path("val.csv").write_text("\n".join([HEADER, *rows, ""]))
    Path("train.csv").write_text("\n".join([HEADER, SWAG.format(1), SWAG.format(0).replace("man", "boy"), ""]))
    assert [document.labels for document in read("swag", "val")] == [(2,)]
    assert MultipleChoice(task="swag", path=(".",)).skipped_inputs() == {
        "rows without a label": 1,
        "rows with an empty choice": 1,
        "training documents that the validation split has too": 1,
    }
    Path("train.jsonl").write_text(json.dumps({**COPA, "question": "why"}))
    Path("val.jsonl").write_text(json.dumps(COPA))
    with raises_problem(DataError, "no-text", "train.jsonl:1", "cause, effect"):
        read("copa")


@pytest.mark.parametrize("negatives", ["topic", "place"])
def test_the_right_continuation_follows_and_the_others_do_not(negatives: Any) -> None:
    reference = {topic.name: topic.sentences for topic in Reference(0.2).topics("val")}
    documents = list(Continuations(negatives=negatives, choices=3).documents("val"))
    assert len(documents) > 50
    for document in documents:
        sentences, choices = reference[document.name], [choice.removeprefix(" ") for choice in document.target]
        right = choices.pop(int(document.labels[0]))
        assert any(sentences[place : place + 2] == (document.text, right) for place in range(len(sentences)))
        assert len(set(choices)) == 2
        assert right not in choices
        assert all((choice in sentences) == (negatives == "place") for choice in choices)
    counts = [sum(document.labels[0] == number for document in documents) for number in range(3)]
    assert min(counts) > len(documents) / 5
