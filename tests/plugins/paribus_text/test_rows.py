"""Rows of tables: read one by one, and what is wrong with one is told with its place."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from paribus import DataError
from paribus_text.rows import Row, lines, rows
from paribus_text.text import Text


class Told:
    """What was wrong."""

    def __init__(self) -> None:
        self.said: list[str] = []

    def __call__(self, code: str, where: object, what: str, valid: str) -> None:
        self.said.append(f"{code} {where}: {what}; {valid}")


def read(path: Path, *fields: str) -> tuple[list[Row], list[str]]:
    told = Told()
    return list(rows(path, fields or ("text",), told)), told.said


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_row_of_csv_may_hold_commas_quotes_and_lines() -> None:
    Path("a.csv").write_bytes('\ufefftext,label\r\n"One, ""two""\r\nthree",1\r\n\r\nfour,0\r\n'.encode())
    found, said = read(Path("a.csv"), "text", "label")
    assert said == []
    assert found == [
        Row("a.csv:2", {"text": 'One, "two"\r\nthree', "label": "1"}),
        Row("a.csv:5", {"text": "four", "label": "0"}),
    ]


def test_a_text_in_csv_may_be_long() -> None:
    Path("a.tsv").write_text("text\tlabel\n" + "x" * 300_000 + "\t1\n")
    assert len(read(Path("a.tsv"))[0][0].values["text"]) == 300_000


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("text,label\none\n", "broken-csv a.csv:2: this row has 1 fields, and the header has 2; as many"),
        ("label\n1\n", "no-field a.csv:1: there is no field 'text'; a field of the rows: 'label'"),
        ('text\n"one\n', "broken-csv a.csv:2: this row is no CSV: unexpected end of data; quotes that are closed"),
        ('text\n"one"x\n', "broken-csv a.csv:2: this row is no CSV: "),
    ],
)
def test_a_broken_row_of_csv_is_told_with_its_line(text: str, said: str) -> None:
    Path("a.csv").write_text(text)
    found, told = read(Path("a.csv"))
    assert found == []
    (one,) = told
    assert one.startswith(said)


@pytest.mark.parametrize("name", ["a.csv", "a.jsonl"])
def test_what_is_no_utf8_is_told_with_its_offset_in_the_file(name: str) -> None:
    start = b"text\nONE\n" if name == "a.csv" else b'{"text": "ONE"}\n'
    Path(name).write_bytes(start + b'{"text": "caf\xe9"}\n')
    found, told = read(Path(name))
    assert [row.values["text"] for row in found] == ["ONE"]
    line = start.count(b"\n") + 1
    assert told == [
        f"not-utf8 {name}:{line}: it is not UTF-8: byte 0xe9 at offset {len(start) + 13}; "
        "UTF-8 (iconv -f latin1 -t utf-8 converts)"
    ]


def test_lines_are_read_as_they_are_asked_for() -> None:
    Path("a.jsonl").write_text("one\ntwo\n")
    found = lines(Path("a.jsonl"), Told())
    assert next(found) == (1, "one\n")
    assert next(found) == (2, "two\n")


def parquet(path: str, **columns: list[Any]) -> None:
    pyarrow = pytest.importorskip("pyarrow", reason="Parquet takes the extra `parquet`")
    from pyarrow import parquet

    parquet.write_table(pyarrow.table(columns), path)


@pytest.mark.extras
def test_rows_of_parquet_are_numbered() -> None:
    parquet("a.parquet", text=["one", None, "three"], label=[1, 0, 2])
    found, said = read(Path("a.parquet"), "text", "label")
    assert said == []
    assert found[2] == Row("a.parquet, row 3", {"text": "three", "label": 2})
    assert read(Path("a.parquet"), "body")[1] == [
        "no-field a.parquet: there is no field 'body'; a field of the rows: 'text', 'label'"
    ]
    corpus = Text(path=("a.parquet",))
    assert sorted(document.text for split in ("train", "val") for document in corpus.documents(split)) == [
        "one",
        "three",
    ]
    assert corpus.skipped_inputs() == {"rows without a text": 1}


@pytest.mark.extras
def test_a_cut_file_of_parquet_is_told() -> None:
    parquet("a.parquet", text=["one"] * 100)
    Path("a.parquet").write_bytes(Path("a.parquet").read_bytes()[:-9])
    (said,) = read(Path("a.parquet"))[1]
    assert said.startswith("broken-parquet a.parquet: it cannot be read behind row 0: ")


def test_without_pyarrow_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    Path("a.parquet").write_bytes(b"PAR1")
    match = r"error\[not-installed\] corpus.path \(a.parquet\): reading Parquet takes pyarrow, which is not installed; "
    with pytest.raises(DataError, match=match + r"valid: pip install 'paribus\[parquet\]'"):
        read(Path("a.parquet"))


def test_a_folder_is_all_that_is_read_in_it(folder: Path) -> None:
    (folder / "in" / "deep").mkdir(parents=True)
    (folder / "in" / "a.txt").write_text("One.")
    (folder / "in" / "deep" / "b.csv").write_text("text\nTwo.\nThree.\n")
    (folder / "in" / "c.jsonl").write_text(json.dumps({"text": "Four."}))
    (folder / "in" / "d.png").write_bytes(b"\x89PNG")
    corpus = Text(path=("in",))
    texts = [document.text for split in ("train", "val") for document in corpus.documents(split)]
    assert sorted(texts) == ["Four.", "One.", "Three.", "Two."]
    assert corpus.skipped_inputs() == {"files of a kind that is not read": 1}
