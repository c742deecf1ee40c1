"""Labelled tables: texts and pairs with classes or scores, and invalid labels."""

import json
from pathlib import Path
from typing import Any

import pytest
from tests.fixtures.problems import raises_problem

import paribus
from paribus import DataError, Document, SpecError
from paribus.datamodule.token_store import encode_corpus
from paribus_text.bytes import Bytes
from paribus_text.table import Table


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def table(*rows: tuple[Any, ...], header: tuple[str, ...] = ("text", "label"), name: str = "a.csv") -> None:
    lines = [",".join(map(str, row)) for row in (header, *rows)]
    Path(name).write_text("\n".join(lines) + "\n")


def all_of(corpus: Table) -> list[Document]:
    return sorted((*corpus.documents("train"), *corpus.documents("val")), key=lambda document: document.name)


def assert_refused(code: str, *values: object, **options: Any) -> None:
    with raises_problem(DataError, code, *values):
        Table(path=("a.csv",), **options).fingerprint()


def test_each_row_is_a_labelled_document() -> None:
    table(("A film. Good.", 1), ("Bad.", 0), ("So so.", "1.0"))
    assert [(it.name, it.sentences, it.labels) for it in all_of(Table(path=("a.csv",), label="label"))] == [
        ("a.csv:2", ("A film. Good.",), (1,)),
        ("a.csv:3", ("Bad.",), (0,)),
        ("a.csv:4", ("So so.",), (1,)),
    ]


def test_classes_may_have_names() -> None:
    table(("One.", "no"), ("Two.", "yes"), ("Three.", "2"))
    corpus = Table(path=("a.csv",), label="label", names=("yes", "no", "perhaps"))
    assert [document.labels for document in all_of(corpus)] == [(1,), (0,), (2,)]
    assert corpus.classes() == ("yes", "no", "perhaps")


def test_an_objective_has_as_many_classes_as_the_names_of_the_corpus() -> None:
    corpus = "corpus={name: table, path: [a.csv], label: label, names: [animal, tool, food]}"
    with raises_problem(SpecError, "does-not-fit", "objective.classes", "3 or more"):
        paribus.spec("bert-tiny", corpus, "objective=classify")
    assert paribus.spec("bert-tiny", corpus, "objective={name: classify, classes: 3}").corpus.classes is None


def test_pairs_have_a_second_text_and_scores_are_numbers() -> None:
    table(("One.", "Eins.", 0.5), ("Two.", "Zwei.", "-3e2"), header=("a", "b", "s"))
    result = all_of(Table(path=("a.csv",), text="a", second="b", score="s"))
    assert [(it.text, it.target, it.labels) for it in result] == [
        ("One.", ("Eins.",), (0.5,)),
        ("Two.", ("Zwei.",), (-300.0,)),
    ]


def test_rows_may_be_json_lines() -> None:
    Path("a.jsonl").write_text(
        "\n".join(json.dumps({"text": f"Text {number}.", "label": number % 2}) for number in range(4))
    )
    assert [document.labels for document in all_of(Table(path=("a.jsonl",), label="label"))] == [(0,), (1,), (0,), (1,)]


@pytest.mark.parametrize(
    ("label", "options", "valid"),
    [
        ("good", {}, "0 to 1"),
        ("2", {}, "0 to 1"),
        ("-1", {}, "0 to 1"),
        ("0.5", {}, "0 to 1"),
        ("nan", {}, "0 to 1"),
        ("on", {"names": ("off", "ON")}, "off, ON"),
    ],
)
def test_an_unknown_label_is_reported_with_its_row(label: str, options: dict[str, Any], valid: str) -> None:
    table(("One.", 1), ("Two.", label), ("Three.", 0))
    assert_refused("missing-label", "corpus.path", "a.csv:3", repr(label), "2 classes", valid, label="label", **options)


@pytest.mark.parametrize("score", ["much", "inf", "1_000"])
def test_a_score_that_is_not_a_number_is_reported_with_its_row(score: str) -> None:
    table(("One.", 1), ("Two.", score))
    assert_refused("not-a-number", "corpus.path", "a.csv:3", repr(score), score="label")


def test_rows_without_label_or_text_are_dropped_and_counted() -> None:
    table(("One.", 1), ("Two.", ""), (" ", 1), ("Three.", 0))
    corpus = Table(path=("a.csv",), label="label")
    assert len(all_of(corpus)) == 2
    assert corpus.skipped_inputs() == {"rows without a label": 1, "documents without text": 1}


def test_the_same_text_is_in_one_split_whatever_its_label() -> None:
    table(*((f"Text {number % 10}.", number % 2) for number in range(40)))
    corpus = Table(path=("a.csv",), label="label", held_out=0.3)
    train, val = ({document.text for document in corpus.documents(split)} for split in ("train", "val"))
    assert train.isdisjoint(val)
    assert len(train | val) == 10


def test_the_fingerprint_depends_on_the_labels() -> None:
    table(("One.", 1), ("Two.", 0))
    fingerprint = Table(path=("a.csv",), label="label").fingerprint()
    table(("One.", 0), ("Two.", 0))
    assert Table(path=("a.csv",), label="label").fingerprint() != fingerprint


def test_contradicting_options_are_refused() -> None:
    with raises_problem(SpecError, "too-many", "corpus.score"):
        Table(path=("a.csv",), label="a", score="b")
    with raises_problem(SpecError, "out-of-range", "corpus.names", "3", "2"):
        Table(path=("a.csv",), label="a", names=("a", "b", "c"), classes=2)


def test_labels_come_with_their_documents(tmp_path: Path) -> None:
    table(*((f"Text {number}.", number % 3) for number in range(30)))
    corpus = Table(path=("a.csv",), label="label", classes=3)
    result = encode_corpus(corpus, Bytes(), spec=None, size=None, cache=tmp_path / "cache")
    assert result.train.labels is not None
    assert result.train.labels.values.tolist() == [it.labels[0] for it in corpus.documents("train")]
