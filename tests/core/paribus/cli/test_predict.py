"""`paribus predict`: tables, JSON lines in and out, and errors with the place of a line."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

Cli = Callable[..., Any]
SMALL = ("dims.width=16", "dims.layers=1", "dims.heads=2", "data.batch=8", "trainer.max_steps=1", "tokenizer=bytes")
ROWS = [(f"{'good' if number % 3 else 'bad'} film number {number}", "positive" if number % 3 else "negative")
        for number in range(60)]  # fmt: skip


def test_classes_have_the_names_of_the_corpus(tmp_path: Path, cli: Cli) -> None:
    path = tmp_path / "films.csv"
    path.write_text("text,label\n" + "".join(f"{text},{label}\n" for text, label in ROWS))
    corpus = f"corpus={{name: table, path: [{path}], held_out: 0.2, label: label, names: [negative, positive]}}"
    words = ("bert-tiny", "objective=classify", corpus, *SMALL, "dims.length=40", "data.validation=8")
    assert cli("train", *words, "--save", str(tmp_path / "model")).code == 0
    result = cli("predict", str(tmp_path / "model"), "a good film")
    assert {line.split()[1] for line in result.out.splitlines()} == {"positive", "negative"}
    lines = cli("predict", str(tmp_path / "model"), "a good film", "a bad film", "--json").out.splitlines()
    (first, second) = map(json.loads, lines)
    assert first["text"] == "a good film"
    assert second["label"] in ("positive", "negative")
    assert set(first) == {"text", "label", "probability", "probabilities"}
    rows = tmp_path / "rows.jsonl"
    rows.write_text('{"review": "a good film"}\n{"review": "a bad film"}\n')
    by_file = cli("predict", str(tmp_path / "model"), "--file", str(rows), "--columns", "review", "--json")
    assert by_file.out.splitlines() == lines
    assert len(cli("predict", str(tmp_path / "model"), "a good film", "a bad film").out.splitlines()) == 2


INVALID = {
    "not JSON": ('{"text": "a"}\nb', (), "invalid-line", "rows.jsonl:2"),
    "no object": ("[1]", (), "invalid-line", "rows.jsonl:1"),
    "another key": ('{"review": "a"}', (), "invalid-line", "review"),
    "a number": ('{"text": 3}', (), "invalid-line", "text"),
    "some pairs": ('{"text": "a", "pair": "b"}\n{"text": "a"}', (), "invalid-line", "rows.jsonl:2"),
    "a missing column": ('{"text": "a"}', ("--columns", "text,second"), "invalid-line", "second"),
}


@pytest.mark.parametrize(
    ("name", "content"), [("texts.txt", '{"text": "a"}\n{"text": "b"}'), ("rows.csv", "text,label\na,1")]
)
def test_lines_that_are_no_texts_are_refused(name: str, content: str, tmp_path: Path, cli: Cli) -> None:
    (tmp_path / name).write_text(content)
    result = cli("predict", "nowhere", "--file", str(tmp_path / name))
    assert result.code == 4
    assert "error[invalid-line]" in result.err
    assert name in result.err


@pytest.mark.parametrize(("content", "options", "code", "value"), INVALID.values(), ids=INVALID)
def test_invalid_lines_are_reported_with_their_place(
    content: str, options: tuple[str, ...], code: str, value: str, tmp_path: Path, cli: Cli
) -> None:
    rows = tmp_path / "rows.jsonl"
    rows.write_text(content)
    result = cli("predict", "nowhere", "--file", str(rows), *options)
    assert result.code == 4
    assert f"error[{code}]" in result.err
    assert value in result.err


def test_a_language_model_reads_examples_from_a_file(tmp_path: Path, cli: Cli) -> None:
    words = ("gpt-tiny", "corpus={name: groups, examples: 400}", *SMALL, "dims.length=80", "data.validation=8")
    model = str(tmp_path / "model")
    assert cli("train", *words, "--save", model).code == 0
    table, lines = tmp_path / "shots.csv", tmp_path / "shots.jsonl"
    table.write_text('text,label\n"A film, good",good\nA bad film,poor\n')
    lines.write_text('{"text": "A film, good", "label": "good"}\n\n{"text": "A bad film", "label": "poor"}\n')
    results = [cli("predict", model, "A fair film", "--examples", str(path), "--json").out for path in (table, lines)]
    assert results[0] == results[1]
    document = json.loads(results[0])
    assert set(document["log_likelihoods"]) == {"good", "poor"}
    assert document["label"] in ("good", "poor")
    rows = cli("predict", model, "A fair film", "--examples", str(table)).out.splitlines()
    assert {row.split()[1] for row in rows} == {"good", "poor"}
    endings = cli(
        "predict", model, "A film", "--choice", "is good", "--choice", "ends", "--normalize", "bytes", "--json"
    )
    assert set(json.loads(endings.out)["probabilities"]) == {"is good", "ends"}


def test_choices_are_options_or_lists_in_json_lines(tmp_path: Path, cli: Cli) -> None:
    model = str(tmp_path / "model")
    words = ("objective={name: choose, choices: 2}", "corpus={name: continuations, choices: 2}")
    assert cli("train", "bert-tiny", *words, *SMALL, "dims.length=64", "data.validation=8", "--save", model).code == 0
    one = cli("predict", model, "A sentence.", "--choice", "It ends.", "--choice", "More.", "--json").out
    assert set(json.loads(one)["probabilities"]) == {"It ends.", "More."}
    rows = tmp_path / "rows.jsonl"
    rows.write_text(
        '{"text": "A sentence.", "choices": ["It ends.", "More."]}\n{"text": "B.", "choices": ["C.", "D."]}'
    )
    both = cli("predict", model, "--file", str(rows), "--json").out.splitlines()
    assert [*json.loads(both[1])["probabilities"]] == ["C.", "D."]
    assert json.loads(both[0])["label"] == json.loads(one)["label"]
    twice = cli("predict", model, "--file", str(rows), "--choice", "C.", "--choice", "D.")
    assert twice.code == 2


INVALID_EXAMPLES = {
    "another format": ("shots.txt", "a", "shots.txt"),
    "no row": ("shots.csv", "text,label\n", "shots.csv"),
    "no label": ("shots.csv", "text,class\na,b\n", "shots.csv:2"),
    "an empty label": ("shots.tsv", "text\tlabel\na\t\n", "shots.tsv:2"),
    "not JSON": ("shots.jsonl", '{"text": "a", "label": "b"}\n{', "shots.jsonl:2"),
    "no object": ("shots.jsonl", "[]", "shots.jsonl:1"),
}


@pytest.mark.parametrize(("name", "content", "place"), INVALID_EXAMPLES.values(), ids=INVALID_EXAMPLES)
def test_invalid_examples_are_reported_with_their_place(
    name: str, content: str, place: str, tmp_path: Path, cli: Cli
) -> None:
    (tmp_path / name).write_text(content)
    result = cli("predict", "nowhere", "A text", "--examples", str(tmp_path / name))
    assert result.code == 4
    assert "error[invalid-line]" in result.err
    assert place in result.err


def test_a_missing_file_of_examples_is_reported(tmp_path: Path, cli: Cli) -> None:
    result = cli("predict", "nowhere", "A text", "--examples", str(tmp_path / "none.csv"))
    assert result.code == 4
    assert "none.csv" in result.err


def test_images_are_read_from_an_array(tmp_path: Path, cli: Cli) -> None:
    model, path = str(tmp_path / "model"), tmp_path / "images.npy"
    words = ("dims.width=16", "dims.layers=1", "dims.heads=2", "data.batch=8", "data.validation=8")
    assert cli("train", "vit-tiny", *words, "trainer.max_steps=1", "--save", model).code == 0
    np.save(path, np.zeros((2, 16, 16), np.uint8))
    lines = [json.loads(line) for line in cli("predict", model, "--images", str(path), "--json").out.splitlines()]
    assert [line["text"] for line in lines] == ["image 1", "image 2"]
    assert lines[0]["probabilities"] == lines[1]["probabilities"]
    np.save(path, np.zeros((16, 16), np.uint8))
    result = cli("predict", model, "--images", str(path))
    assert "error[not-an-image]" in result.err
    assert cli("predict", model, "A text", "--images", str(path)).code == 2
    (tmp_path / "broken.npy").write_text("no array")
    assert "error[not-an-image]" in cli("predict", model, "--images", str(tmp_path / "broken.npy")).err
