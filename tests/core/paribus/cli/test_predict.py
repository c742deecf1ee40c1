"""`paribus predict`: tables, JSON lines in and out, and errors with the place of a line."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

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
