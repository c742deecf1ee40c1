"""Corpus of the user's files: documents, dropped texts and errors."""

import errno
import json
import os
from collections import Counter
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.fixtures.problems import raises_problem

from paribus import DataError, Document
from paribus_text import text_files
from paribus_text.text import Text
from paribus_text.text_files import KINDS, FileSet, TextReader, Unit

PARAGRAPHS = [f"Paragraph {number} stands here. It has two sentences." for number in range(40)]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def both_splits(corpus: Text) -> tuple[list[Document], list[Document]]:
    return list(corpus.documents("train")), list(corpus.documents("val"))


def lines(*documents: object) -> str:
    return "".join(json.dumps(document) + "\n" for document in documents)


def assert_refused(code: str, *values: object, **options: object) -> DataError:
    """Return the error."""
    with raises_problem(DataError, code, *values) as raised:
        Text(**options).fingerprint()  # type: ignore[arg-type]  # options of each test
    return raised.value


# --- documents ---


CODE = "\n\ndef f(x):\n    if x:  # two  spaces. And\n\treturn x\n\n\n"


def test_each_file_is_a_document_as_it_is(folder: Path) -> None:
    (folder / "a.txt").write_text(CODE)
    (folder / "b.md").write_text("Five. \r\n\r\nSix.")
    train, val = both_splits(Text(path=("*.txt", "*.md")))
    assert {document.name: document.sentences for document in train + val} == {
        "a.txt": (CODE,),
        "b.md": ("Five. \n\nSix.",),
    }


def test_documents_may_be_split_into_sentences(folder: Path) -> None:
    (folder / "a.txt").write_text("One. Two.\n\nThree\nfour.")
    (folder / "b.md").write_text("Five.\r\n\r\nSix.")
    whole, split = (Text(path=("*.txt", "*.md"), sentences=sentences) for sentences in (False, True))
    assert whole.fingerprint() != split.fingerprint()
    train, val = both_splits(split)
    assert {document.name: document.sentences for document in train + val} == {
        "a.txt": ("One.", "Two.", "Three four."),
        "b.md": ("Five.", "Six."),
    }
    assert len(train) == len(val) == 1


def test_paragraphs_may_be_documents(folder: Path) -> None:
    (folder / "a.txt").write_text("\n\n".join(PARAGRAPHS))
    train, val = both_splits(Text(path=("a.txt",), documents="paragraph"))
    assert sorted(document.text for document in train + val) == sorted(PARAGRAPHS)
    assert len(val) == 4
    assert {document.name for document in train + val} == {f"a.txt, paragraph {number}" for number in range(1, 41)}


def test_folders_may_be_languages(folder: Path) -> None:
    for language, text in (("de", "Eins. Zwei."), ("en", "One. Two."), ("fr", "Un. Deux.")):
        (folder / language).mkdir()
        (folder / language / "a.txt").write_text(text)
    with_languages, without_languages = Text(path=("*/a.txt",), languages=True), Text(path=("*/a.txt",))
    train, val = both_splits(with_languages)
    assert {document.text[0]: document.language for document in train + val} == {"E": "de", "O": "en", "U": "fr"}
    assert {document.language for documents in both_splits(without_languages) for document in documents} == {""}
    assert with_languages.fingerprint() != without_languages.fingerprint()


def test_a_line_of_json_is_a_document(folder: Path) -> None:
    (folder / "a.jsonl").write_text(lines({"body": "One.\u2028Two."}, {"body": "Three.", "id": 7}) + "\n")
    train, val = both_splits(Text(path=("a.jsonl",), field="body"))
    assert {document.name: document.sentences for document in train + val} == {
        "a.jsonl:1": ("One.\u2028Two.",),
        "a.jsonl:2": ("Three.",),
    }


def test_validation_files_are_the_validation_split(folder: Path) -> None:
    (folder / "a.txt").write_text("One.")
    (folder / "b.txt").write_text("Two.")
    train, val = both_splits(Text(path=("a.txt",), validation=("b.txt",)))
    assert [document.text for document in train] == ["One."]
    assert [document.text for document in val] == ["Two."]


def test_patterns_reach_into_folders_and_a_file_is_read_once(folder: Path) -> None:
    (folder / "in" / "deep").mkdir(parents=True)
    (folder / "in" / "deep" / "a.txt").write_text("One.")
    (folder / "in" / "B.TXT").write_text("Two.")
    train, val = both_splits(Text(path=("in/**/*", "in/deep/a.txt", str(folder / "in" / "B.TXT"))))
    assert sorted({document.text for document in train + val}) == ["One.", "Two."]


# --- large files ---

LINES = ["a", "é", " ", "\n", "\r\n", "\n\n", "\r\n\r\n", "\n \n", "\ufeff", "."]


@pytest.mark.thorough
@settings(max_examples=500)
@given(st.lists(st.sampled_from(LINES), max_size=30), st.integers(1, 40), st.sampled_from(["file", "paragraph"]))
def test_a_file_is_read_in_blocks_as_in_one(pieces: list[str], size: int, unit: Unit) -> None:
    with TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        (Path(folder) / "a.txt").write_bytes("".join(pieces).encode())

        def read() -> tuple[list[Document], dict[str, int]]:
            dropped: Counter[str] = Counter()
            files = FileSet("corpus.path", (f"{folder}/a.txt",), KINDS, [], dropped)
            return list(TextReader(files, unit, "text", languages=False).documents()), dropped

        whole = read()
        patch.setattr(text_files, "BLOCK", size)
        assert read() == whole


@pytest.mark.parametrize("size", range(1, 20))
def test_a_byte_that_is_not_utf8_is_located_in_any_block(
    size: int, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(text_files, "BLOCK", size)
    (folder / "a.txt").write_bytes(b"One.\n\nTwo.\r\n\r\nThr\xffee.")
    assert_refused("not-utf8", "a.txt:5", "0xff", "offset 17", path=("a.txt",), documents="paragraph")


# --- the splits ---


def test_every_document_lies_in_one_split_whatever_files_it_is_in(folder: Path) -> None:
    (folder / "a.txt").write_text("\n\n".join(PARAGRAPHS))
    held_out = {document.text for document in Text(path=("a.txt",), documents="paragraph").documents("val")}
    for place, text in enumerate(reversed(PARAGRAPHS)):
        (folder / f"{place}.md").write_text(text)
    train, val = both_splits(Text(path=("*.md",)))
    assert {document.text for document in val} == held_out
    assert {document.text for document in train} == set(PARAGRAPHS) - held_out


def test_two_documents_with_one_text_lie_in_the_same_split(folder: Path) -> None:
    (folder / "a.txt").write_text("\n\n".join(PARAGRAPHS * 2))
    train, val = both_splits(Text(path=("a.txt",), documents="paragraph", held_out=0.4))
    assert len(val) == 2 * len({document.text for document in val})
    assert {document.text for document in train}.isdisjoint(document.text for document in val)


def test_the_fingerprint_depends_on_contents_and_split(folder: Path) -> None:
    (folder / "a.txt").write_text("\n\n".join(PARAGRAPHS))
    corpus = Text(path=("a.txt",), documents="paragraph")
    fingerprint = corpus.fingerprint()
    assert Text(path=("a.txt",), documents="paragraph", held_out=0.3).fingerprint() != fingerprint
    (folder / "a.txt").rename(folder / "b.txt")
    assert Text(path=("b.txt",), documents="paragraph").fingerprint() == fingerprint
    (folder / "a.txt").write_text("\n\n".join([*PARAGRAPHS[1:], "Another one."]))
    assert corpus.fingerprint() != fingerprint


def test_moving_a_text_to_the_validation_files_changes_the_fingerprint(folder: Path) -> None:
    for name, text in (("a", "One."), ("b", "Two."), ("c", "Two.\n\nThree.")):
        (folder / f"{name}.txt").write_text(text)
    fingerprint_a = Text(path=("a.txt", "b.txt"), validation=("c.txt",)).fingerprint()
    fingerprint_b = Text(path=("a.txt",), validation=("b.txt", "c.txt")).fingerprint()
    assert fingerprint_a != fingerprint_b


# --- dropped files and documents ---


def test_dropped_files_and_documents_are_counted_by_reason(folder: Path) -> None:
    (folder / "empty.txt").write_text("")
    (folder / "blank.txt").write_text(" \n\t\n")
    (folder / "picture.png").write_bytes(b"\x89PNG")
    (folder / "a.jsonl").write_text(lines({"text": " "}, {"text": "One."}, {"text": "\ud800"}, {"text": "Two."}))
    corpus = Text(path=("*",))
    train, val = both_splits(corpus)
    assert len(train) + len(val) == 2
    assert corpus.skipped_inputs() == {
        "files without text": 2,
        "files of an unknown kind": 1,
        "documents without text": 1,
        "documents with half of a surrogate pair": 1,
    }


@pytest.mark.parametrize("text", ["", " \n\n\t"])
def test_blank_files_are_refused_and_counted(folder: Path, text: str) -> None:
    (folder / "a.txt").write_text(text)
    assert_refused("no-documents", "got 0", "dropped: 1", path=("a.txt",))
    (folder / "b.txt").write_text("One.")
    assert_refused("no-documents", "corpus.validation", path=("b.txt",), validation=("a.txt",))


def test_a_single_document_is_refused(folder: Path) -> None:
    (folder / "a.txt").write_text("One.\n\nTwo.")
    assert_refused("no-documents", "got 1", "`documents: paragraph`", path=("a.txt",))
    assert [len(documents) for documents in both_splits(Text(path=("a.txt",), documents="paragraph"))] == [1, 1]


# --- errors ---


def test_a_missing_file_is_reported_with_the_searched_folder(folder: Path) -> None:
    assert_refused("missing-file", "corpus.path", "missing.txt", folder, path=("missing.txt",))


def test_an_empty_folder_is_refused(folder: Path) -> None:
    (folder / "in").mkdir()
    assert_refused("missing-file", "corpus.path", "'in'", path=("in",))


def test_an_unknown_file_type_is_refused(folder: Path) -> None:
    (folder / "a.pdf").write_text("One.")
    assert_refused("file-kind", "corpus.path", "a.pdf", ".txt, .md, .jsonl", path=("a.pdf",))


def test_text_that_is_not_utf8_is_refused_with_its_line_and_offset(folder: Path) -> None:
    (folder / "a.txt").write_bytes(b"One.\nTwo \xe4.")
    assert_refused("not-utf8", "corpus.path", "a.txt:2", "0xe4", "offset 9", path=("a.txt",))


@pytest.mark.parametrize(
    ("name", "data", "places"),
    [
        ("a.txt", b"One.\nTwo\0.\n", ("a.txt", "line 2")),
        ("a.txt", "One.\nTwo.\n".encode("utf-16-le"), ("a.txt", "line 1")),
        ("a.md", b"One.\n\nTwo.\n\0", ("a.md", "line 4")),
        ("a.jsonl", b'{"text": "One."}\n{"text": "Two\\u0000."}\n', ("a.jsonl:2",)),
    ],
)
def test_text_with_nul_characters_is_refused_with_its_place(
    folder: Path, name: str, data: bytes, places: tuple[str, ...]
) -> None:
    (folder / name).write_bytes(data)
    assert_refused("nul-character", "corpus.path", *places, path=(name,))


def test_a_byte_order_mark_is_removed(folder: Path) -> None:
    (folder / "a.txt").write_bytes(b"\xef\xbb\xbfOne.\n\nTwo.")
    train, val = both_splits(Text(path=("a.txt",), documents="paragraph"))
    assert {document.text for document in train + val} == {"One.", "Two."}


@pytest.mark.parametrize(
    ("line", "code", "values"),
    [
        ('{"text": "Two."', "broken-json", ()),
        ("[" * 100_000, "broken-json", ()),
        ('"Two."', "broken-json", ("str",)),
        ('{"body": "Two.", "id": 1}', "missing-field", ("'text'", "'body', 'id'")),
        ("{}", "missing-field", ("'text'", "none")),
        ('{"text": 7}', "no-text", ("'text'", "int")),
    ],
)
def test_a_broken_line_is_refused_with_its_number(folder: Path, line: str, code: str, values: tuple[str, ...]) -> None:
    (folder / "a.jsonl").write_text(lines({"text": "One."}) + line + "\n" + lines({"text": "Three."}))
    assert_refused(code, "a.jsonl:2", *values, path=("a.jsonl",))


def test_an_unreadable_file_is_reported(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "a.txt").write_text("One.")

    def refuse(path: Path, mode: str) -> None:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), path)

    monkeypatch.setattr(Path, "open", refuse)
    assert_refused("cannot-read", "corpus.path", "a.txt", os.strerror(errno.EACCES), path=("a.txt",))


def test_all_problems_are_reported_and_repeated_ones_are_counted(folder: Path) -> None:
    (folder / "a.jsonl").write_text("nonsense\n" * 30)
    options: dict[str, object] = {"path": ("a.jsonl", "missing.txt"), "validation": ("gone.txt",)}
    error = assert_refused("broken-json", "a.jsonl:1", "29 more", "a.jsonl:2, a.jsonl:3, a.jsonl:4, …", **options)
    assert [problem.code for problem in error.problems] == ["missing-file", "broken-json", "missing-file"]
    few = assert_refused("missing-file", path=("missing.txt",), validation=("gone.txt",))
    assert [(problem.code, problem.path) for problem in few.problems] == [
        ("missing-file", "corpus.path"),
        ("missing-file", "corpus.validation"),
    ]


def test_a_file_that_changed_since_the_first_reading_is_refused(folder: Path) -> None:
    (folder / "a.txt").write_text("\n\n".join(PARAGRAPHS))
    corpus = Text(path=("a.txt",), documents="paragraph")
    corpus.fingerprint()
    (folder / "a.txt").write_bytes(b"\xff")
    with raises_problem(DataError, "not-utf8", "a.txt:1", "0xff"):
        list(corpus.documents("train"))
