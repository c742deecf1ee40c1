"""Message catalogues of gettext: search for installed ones, and parsing of compiled (.mo) and source (.po) files."""

from __future__ import annotations

import gettext
import glob
import re
import struct
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple, final

from paribus import Problem

KINDS = (".mo", ".po")
CONTEXT = "\x04"  # separates the context from the message
_CHARSET = re.compile(r"charset=([\w.:-]+)", re.IGNORECASE)
_LANGUAGE = re.compile(r"^Language:[ \t]*([\w@.-]+)", re.MULTILINE)
_LINE = re.compile(r'(?:(msgctxt|msgid|msgid_plural|msgstr(?:\[(\d+)\])?)\s+)?"((?:[^"\\]|\\.)*)"\s*')

_ESCAPE = re.compile(r"\\(.)")
_ESCAPED = {"n": "\n", "t": "\t", "r": "\r", "a": "", "b": "", "f": " ", "v": " "}


class Message(NamedTuple):
    """A message and its translation, with whitespace collapsed."""

    name: str
    message: str
    translation: str
    language: str
    is_fuzzy: bool = False


@final
class CatalogueError(Exception):
    """Invalid content of a catalogue."""

    def __init__(self, code: str, location: str, message: str) -> None:
        super().__init__(message)
        self.code, self.location, self.message = code, location, message


def installed_catalogues() -> list[Path]:
    """Return the catalogues of installed programs, from the folders that gettext searches."""
    roots = {Path(sys.base_prefix, "share", "locale"), Path("/usr/share/locale"), Path("/usr/share/locale-langpack")}
    return sorted(file for root in roots for file in root.glob("*/LC_MESSAGES/*.mo"))


def matching_catalogues(patterns: Sequence[str], problems: list[Problem]) -> list[Path]:
    """Return the catalogues that match the patterns; a pattern without any is added to `problems`."""
    catalogues: set[Path] = set()
    for pattern in patterns:
        files = [Path(name) for name in glob.glob(pattern, recursive=True) if Path(name).is_file()]  # noqa: PTH207  # Path's takes no absolute one
        matches = [file for file in files if file.suffix.lower() in KINDS]
        if not matches:
            message = f"no file matches {pattern!r} in {Path.cwd()}"
            if files:
                message = f"expected a catalogue, got {files[0]}"
            valid = "a pattern of .mo and .po files, such as 'po/*.po'"
            problems.append(Problem(code="missing-file", path="corpus.path", message=message, valid=valid))
        catalogues.update(matches)
    return sorted(catalogues)


def messages(file: Path) -> Iterator[Message]:
    """Yield all messages of a catalogue, with the first of several plural forms; raise a CatalogueError if invalid."""
    try:
        data = file.read_bytes()
    except OSError as error:
        raise CatalogueError("cannot-read", str(file), f"cannot read the file: {error.strerror}") from error
    pairs = _parse_compiled(file) if file.suffix.lower() == ".mo" else list(_parse_source(file, data))
    header = next((translation for message, translation, _ in pairs if not message), "")
    language = _language(file, header)
    for number, (message, translation, is_fuzzy) in enumerate(pairs):
        if message:
            name = f"{file}, message {number}"
            yield Message(name, _collapse(message), _collapse(translation), language, is_fuzzy)


def _language(file: Path, header: str) -> str:
    """Return the language of the header, else that of the folder, else the file's own name."""
    match = _LANGUAGE.search(header)
    if match:
        return match[1]
    return file.parent.parent.name if file.parent.name == "LC_MESSAGES" else file.stem


def _collapse(text: str) -> str:
    return " ".join(text.rpartition(CONTEXT)[2].split())


def _parse_compiled(file: Path) -> list[tuple[str, str, bool]]:
    try:
        with file.open("rb") as stream:
            catalogue: dict[Any, str] = vars(gettext.GNUTranslations(stream))["_catalog"]
    except (OSError, ValueError, struct.error, LookupError) as error:  # ValueError includes a UnicodeDecodeError
        raise CatalogueError("broken-catalogue", str(file), f"gettext cannot read the catalogue: {error}") from error
    entries: list[tuple[str, str, bool]] = []
    for key, translation in catalogue.items():
        message, form = key if isinstance(key, tuple) else (key, 0)
        if form == 0:
            entries.append((message, translation, False))
    return entries


def _parse_source(file: Path, data: bytes) -> Iterator[tuple[str, str, bool]]:
    charset = _CHARSET.search(data[:4096].decode("ascii", "replace"))
    encoding = charset[1] if charset and charset[1] != "CHARSET" else "utf-8"
    try:
        text = data.decode(encoding).removeprefix("\ufeff")
    except (UnicodeDecodeError, LookupError) as error:
        location = str(file)
        if isinstance(error, UnicodeDecodeError):
            location = f"{file}:{data.count(10, 0, error.start) + 1}"
        message = f"expected the encoding {encoding}, which the header names or implies: {error}"
        raise CatalogueError("not-text", location, message) from error
    entry: dict[str, str] = {}
    keyword, is_fuzzy = "", False
    for number, line in enumerate([*text.split("\n"), ""], start=1):
        stripped = line.strip()
        is_start = stripped.startswith(("msgctxt", "msgid "))
        if "msgstr" in entry and (not stripped or is_start or stripped.startswith("#")):
            yield entry.get("msgid", ""), entry["msgstr"], is_fuzzy
            entry, keyword, is_fuzzy = {}, "", False
        if stripped.startswith("#,"):
            is_fuzzy = "fuzzy" in stripped
        if not stripped or stripped.startswith("#"):
            continue
        keyword = _add_line(entry, keyword, stripped, f"{file}:{number}")


def _add_line(entry: dict[str, str], keyword: str, line: str, location: str) -> str:
    """Add a line to the entry, and return the keyword that it belongs to."""
    match = _LINE.fullmatch(line)
    if match is not None and match[1] is not None:
        keyword = match[1].removesuffix("[0]")
    if match is None or not keyword:
        raise CatalogueError("broken-catalogue", location, f"invalid line: {line[:60]!r}")
    entry[keyword] = entry.get(keyword, "") + _ESCAPE.sub(lambda escape: _ESCAPED.get(escape[1], escape[1]), match[3])
    return keyword
