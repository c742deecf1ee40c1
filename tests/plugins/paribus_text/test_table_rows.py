"""Rows of tables, and problems with their location."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.fixtures.problems import raises_problem

from paribus import DataError
from paribus_text.table_rows import Row, lines, rows
from paribus_text.text import Text


class ProblemLog:
    """Recorded problems."""

    def __init__(self) -> None:
        self.problems: list[str] = []

    def __call__(self, code: str, location: object, message: str, valid: str) -> None:
        self.problems.append(f"{code} {location}: {message}; {valid}")


def read(path: Path, *fields: str) -> tuple[list[Row], list[str]]:
    log = ProblemLog()
    return list(rows(path, fields or ("text",), log)), log.problems


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_row_of_csv_may_hold_commas_quotes_and_lines() -> None:
    Path("a.csv").write_bytes('\ufefftext,label\r\n"One, ""two""\r\nthree",1\r\n\r\nfour,0\r\n'.encode())
    table, problems = read(Path("a.csv"), "text", "label")
    assert problems == []
    assert table == [
        Row("a.csv:2", {"text": 'One, "two"\r\nthree', "label": "1"}),
        Row("a.csv:5", {"text": "four", "label": "0"}),
    ]


def test_long_fields_of_csv_are_read() -> None:
    Path("a.tsv").write_text("text\tlabel\n" + "x" * 300_000 + "\t1\n")
    assert len(read(Path("a.tsv"))[0][0].values["text"]) == 300_000


@pytest.mark.parametrize(
    ("text", "start"),
    [
        ("text,label\none\n", "broken-csv a.csv:2: expected 2 fields, as in the header, got 1;"),
        ("label\n1\n", "missing-field a.csv:1: unknown field 'text'; a field of the rows: 'label'"),
        ('text\n"one\n', "broken-csv a.csv:2: invalid CSV: unexpected end of data;"),
        ('text\n"one"x\n', "broken-csv a.csv:2: invalid CSV: "),
    ],
)
def test_a_broken_row_of_csv_is_reported_with_its_line(text: str, start: str) -> None:
    Path("a.csv").write_text(text)
    table, problems = read(Path("a.csv"))
    assert table == []
    (problem,) = problems
    assert problem.startswith(start)


@pytest.mark.parametrize("name", ["a.csv", "a.jsonl"])
def test_invalid_utf8_is_reported_with_its_offset(name: str) -> None:
    start = b"text\nONE\n" if name == "a.csv" else b'{"text": "ONE"}\n'
    Path(name).write_bytes(start + b'{"text": "caf\xe9"}\n')
    table, problems = read(Path(name))
    assert [row.values["text"] for row in table] == ["ONE"]
    line = start.count(b"\n") + 1
    (problem,) = problems
    assert problem.startswith(f"not-utf8 {name}:{line}: not UTF-8: byte 0xe9 at offset {len(start) + 13};")


def test_lines_are_read_lazily() -> None:
    Path("a.jsonl").write_text("one\ntwo\n")
    numbered = lines(Path("a.jsonl"), ProblemLog())
    assert next(numbered) == (1, "one\n")
    assert next(numbered) == (2, "two\n")


def parquet(path: str, **columns: list[Any]) -> None:
    pyarrow = pytest.importorskip("pyarrow", reason="needs the extra `parquet`")
    from pyarrow import parquet

    parquet.write_table(pyarrow.table(columns), path)


@pytest.mark.extras
def test_rows_of_parquet_are_numbered() -> None:
    parquet("a.parquet", text=["one", None, "three"], label=[1, 0, 2])
    table, problems = read(Path("a.parquet"), "text", "label")
    assert problems == []
    assert table[2] == Row("a.parquet, row 3", {"text": "three", "label": 2})
    assert read(Path("a.parquet"), "body")[1] == [
        "missing-field a.parquet: unknown field 'body'; a field of the rows: 'text', 'label'"
    ]
    corpus = Text(path=("a.parquet",))
    assert sorted(document.text for split in ("train", "val") for document in corpus.documents(split)) == [
        "one",
        "three",
    ]
    assert corpus.skipped_inputs() == {"rows without a text": 1}


@pytest.mark.extras
def test_a_truncated_parquet_file_is_reported() -> None:
    parquet("a.parquet", text=["one"] * 100)
    Path("a.parquet").write_bytes(Path("a.parquet").read_bytes()[:-9])
    (problem,) = read(Path("a.parquet"))[1]
    assert problem.startswith("broken-parquet a.parquet: cannot read the rows after row 0: ")


def test_without_pyarrow_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    Path("a.parquet").write_bytes(b"PAR1")
    with raises_problem(DataError, "not-installed", "corpus.path", "a.parquet", "paribus[parquet]"):
        read(Path("a.parquet"))


def test_a_folder_is_read_as_all_its_files(folder: Path) -> None:
    (folder / "in" / "deep").mkdir(parents=True)
    (folder / "in" / "a.txt").write_text("One.")
    (folder / "in" / "deep" / "b.csv").write_text("text\nTwo.\nThree.\n")
    (folder / "in" / "c.jsonl").write_text(json.dumps({"text": "Four."}))
    (folder / "in" / "d.png").write_bytes(b"\x89PNG")
    corpus = Text(path=("in",))
    texts = [document.text for split in ("train", "val") for document in corpus.documents(split)]
    assert sorted(texts) == ["Four.", "One.", "Three.", "Two."]
    assert corpus.skipped_inputs() == {"files of an unknown kind": 1}
