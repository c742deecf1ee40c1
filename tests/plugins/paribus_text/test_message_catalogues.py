"""Message catalogues, in source (.po) and compiled (.mo) form."""

import struct
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from tests.fixtures.problems import raises_problem

from paribus import DataError, Document
from paribus_text import message_catalogues
from paribus_text.catalogues import messages
from paribus_text.message_catalogues import MessageCatalogues

HEADER = "Content-Type: text/plain; charset=UTF-8\nPlural-Forms: nplurals=2; plural=(n != 1);\nLanguage: de\n"
WRITTEN = r"""
# a comment
msgid ""
msgstr ""
"Content-Type: text/plain; charset=UTF-8\n"
"Plural-Forms: nplurals=2; plural=(n != 1);\n"
"Language: de\n"

#: file.c:12
msgid "Open"
msgstr "Öffnen"

msgctxt "a door"
msgid "Close"
msgstr "Schließen"

#, c-format
msgid "one \"file\"\n"
msgid_plural "%d files\n"
msgstr[0] "eine »Datei«\n"
msgstr[1] "%d Dateien\n"

#, fuzzy
msgid "Perhaps"
msgstr "Nie"

msgid "Same"
msgstr "Same"

msgid "Missing"
msgstr ""

msgid ""
"a long "
"message\tof two lines"
msgstr "eine lange Nachricht"
"\tin zwei Zeilen"
msgid "without a blank line before"
msgstr "ohne Leerzeile davor"

#~ msgid "Old"
#~ msgstr "Alt"
"""
PAIRS = {
    ("Open", "Öffnen"),
    ("Close", "Schließen"),
    ('one "file"', "eine »Datei«"),
    ("a long message of two lines", "eine lange Nachricht in zwei Zeilen"),
    ("without a blank line before", "ohne Leerzeile davor"),
}


def compiled(pairs: Iterable[tuple[str, str]]) -> bytes:
    """A compiled catalogue: a table of messages, a table of translations, and the texts."""
    sides = [[text.encode() + b"\0" for text in side] for side in zip(*sorted(pairs), strict=True)]
    count = len(sides[0])
    offset = 28 + 16 * count
    tables = b""
    for side in sides:
        for text in side:
            tables += struct.pack("<2I", len(text) - 1, offset)
            offset += len(text)
    head = struct.pack("<7I", 0x950412DE, 0, count, 28, 28 + 8 * count, 0, 0)
    return head + tables + b"".join(text for side in sides for text in side)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def all_of(corpus: MessageCatalogues) -> list[Document]:
    return [*corpus.documents("train"), *corpus.documents("val")]


def texts(corpus: MessageCatalogues) -> set[tuple[str, str]]:
    return {(document.text, document.target[0]) for document in all_of(corpus)}


def installed(folder: Path, languages: Iterable[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """A fake machine with one program, translated into some languages."""
    for language in languages:
        place = folder / "locale" / language / "LC_MESSAGES" / "program.mo"
        place.parent.mkdir(parents=True)
        pairs = [(f"message {number}", f"{language} {number}") for number in range(40)]
        place.write_bytes(compiled([("", HEADER.replace("Language: de\n", "")), *pairs]))
    files = sorted((folder / "locale").glob("*/LC_MESSAGES/*.mo"))
    monkeypatch.setattr(message_catalogues, "installed_catalogues", lambda: files)


def test_both_kinds_of_catalogue_have_the_same_messages(folder: Path) -> None:
    (folder / "de.po").write_text(WRITTEN)
    corpus = MessageCatalogues(path=("de.po",))
    assert texts(corpus) == PAIRS
    plain = {("Open", "Öffnen"), ("a door\x04Close", "Schließen"), ("x", "Unbekannter")}
    forms = ("one file\0%d files", "eine Datei\0%d Dateien")
    (folder / "other.mo").write_bytes(compiled([("", HEADER), forms, *plain]))
    pairs = texts(MessageCatalogues(path=("*.mo",)))
    assert pairs == {("Open", "Öffnen"), ("Close", "Schließen"), ("x", "Unbekannter"), ("one file", "eine Datei")}


def test_dropped_messages_are_counted_by_reason(folder: Path) -> None:
    (folder / "de.po").write_text(WRITTEN)
    assert MessageCatalogues(path=("de.po",)).skipped_inputs() == {
        "translations marked as fuzzy": 1,
        "translations equal to the message": 1,
        "messages without a translation": 1,
    }


def test_a_pair_has_its_languages(folder: Path) -> None:
    (folder / "de.po").write_text(WRITTEN)
    for document in all_of(MessageCatalogues(path=("de.po",))):
        assert (document.language, document.target_language) == ("en", "de")
    (folder / "fr.po").write_text(WRITTEN.replace('"Language: de\\n"\n', ""))
    (language,) = {message.language for message in messages(folder / "fr.po")}
    assert language == "fr"


def test_a_message_is_in_one_split_in_all_languages_and_counted_once(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    installed(folder, ["de", "fr", "pt_BR"], monkeypatch)
    extra = folder / "locale" / "de" / "LC_MESSAGES" / "zebra.mo"
    extra.write_bytes(compiled([("", HEADER), ("message 3", "noch eine"), ("own", "eigene")]))
    monkeypatch.setattr(message_catalogues, "installed_catalogues", lambda: sorted(folder.glob("locale/*/*/*.mo")))
    corpus = MessageCatalogues(languages=None, held_out=0.2)
    train, val = ([*corpus.documents(split)] for split in ("train", "val"))
    assert not {document.text for document in train} & {document.text for document in val}
    assert {document.target_language for document in val} == {"de", "fr", "pt_BR"}
    assert len(train) + len(val) == 3 * 40 + 1
    assert ("message 3", "de 3") in texts(corpus)
    assert corpus.skipped_inputs() == {"messages that another catalogue has in the same language": 1}
    assert {document.target_language for document in all_of(MessageCatalogues(languages=("fr",)))} == {"fr"}


def test_the_fingerprint_depends_on_the_messages(folder: Path) -> None:
    (folder / "de.po").write_text(WRITTEN)
    corpus = MessageCatalogues(path=("de.po",))
    fingerprint = corpus.fingerprint()
    (folder / "moved").mkdir()
    (folder / "de.po").rename(folder / "moved" / "de.po")
    assert MessageCatalogues(path=("moved/*.po",)).fingerprint() == fingerprint
    (folder / "de.po").write_text(WRITTEN.replace("Öffnen", "Auf"))
    assert corpus.fingerprint() != fingerprint


def test_a_machine_without_catalogues_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(message_catalogues, "installed_catalogues", list)
    with raises_problem(DataError, "missing-catalogues", "corpus.path", "path", ".mo"):
        MessageCatalogues().fingerprint()


def test_an_unavailable_language_is_reported(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    installed(folder, ["fr", "nl"], monkeypatch)
    with raises_problem(DataError, "missing-language", "corpus.languages", "fr, nl"):
        MessageCatalogues().fingerprint()


def test_a_broken_catalogue_of_the_machine_is_left_out(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    installed(folder, ["de"], monkeypatch)
    broken = folder / "locale" / "de" / "LC_MESSAGES" / "a.mo"
    broken.write_bytes(b"no catalogue at all")
    monkeypatch.setattr(message_catalogues, "installed_catalogues", lambda: sorted(folder.glob("locale/*/*/*.mo")))
    assert MessageCatalogues().skipped_inputs() == {"catalogues that are broken": 1}


@pytest.mark.parametrize(
    ("name", "data", "code", "values"),
    [
        ("a.mo", b"short", "broken-catalogue", ("corpus.path",)),
        ("a.mo", struct.pack("<7I", 0x950412DE, 0, 9, 28, 28, 0, 0), "broken-catalogue", ("corpus.path",)),
        ("a.po", b'msgid "x"\nmsgstr y\n', "broken-catalogue", ("corpus.path", "a.po:2")),
        ("a.po", b'"before any part"\n', "broken-catalogue", ("a.po:1", '"before any part"')),
        (
            "a.po",
            b'msgid "x"\nmsgstr "\xff"\n',
            "not-text",
            ("corpus.path", "a.po:2"),
        ),
        (
            "a.po",
            b'msgid "x"\nmsgstr "y"\n',
            "no-documents",
            ("0",),
        ),
        ("a.txt", b"text", "missing-file", ("corpus.path", "a.txt")),
    ],
)
def test_a_broken_catalogue_of_the_user_is_reported(
    name: str, data: bytes, code: str, values: tuple[str, ...], folder: Path
) -> None:
    (folder / name).write_bytes(data)
    with raises_problem(DataError, code, *values):
        MessageCatalogues(path=(name,)).fingerprint()


def test_a_pattern_without_matches_is_reported(folder: Path) -> None:
    corpus: Any = MessageCatalogues(path=("po/*.po",))
    with raises_problem(DataError, "missing-file", "po/*.po"):
        list(corpus.documents("train"))
