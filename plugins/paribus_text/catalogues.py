"""Catalogues of messages: where a machine keeps them, and what is in one, compiled or as its translators wrote it."""

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
CONTEXT = "\x04"  # between a message and what it is said of
_CHARSET = re.compile(r"charset=([\w.:-]+)", re.IGNORECASE)
_LANGUAGE = re.compile(r"^Language:[ \t]*([\w@.-]+)", re.MULTILINE)
_LINE = re.compile(r'(?:(msgctxt|msgid|msgid_plural|msgstr(?:\[(\d+)\])?)\s+)?"((?:[^"\\]|\\.)*)"\s*')

_ESCAPE = re.compile(r"\\(.)")
_MEANT = {"n": "\n", "t": "\t", "r": "\r", "a": "", "b": "", "f": " ", "v": " "}


class Found(NamedTuple):
    """One message of a catalogue, spaces and line breaks made single."""

    name: str
    message: str
    translation: str
    language: str
    uncertain: bool = False


@final
class Wrong(Exception):  # noqa: N818  # it is caught where it is told of
    """What a catalogue has that none may have."""

    def __init__(self, code: str, where: str, what: str) -> None:
        super().__init__(what)
        self.code, self.where, self.what = code, where, what


def machine() -> list[Path]:
    """The catalogues of the programs that are installed, where gettext looks for them."""
    roots = {Path(sys.base_prefix, "share", "locale"), Path("/usr/share/locale"), Path("/usr/share/locale-langpack")}
    return sorted(file for root in roots for file in root.glob("*/LC_MESSAGES/*.mo"))


def matching(patterns: Sequence[str], problems: list[Problem]) -> list[Path]:
    """The catalogues of some patterns; what is none is told of in `problems`."""
    found: set[Path] = set()
    for pattern in patterns:
        files = [Path(name) for name in glob.glob(pattern, recursive=True) if Path(name).is_file()]  # noqa: PTH207  # Path's takes no absolute one
        fits = [file for file in files if file.suffix.lower() in KINDS]
        if not fits:
            what = f"no file matches {pattern!r} in {Path.cwd()}" if not files else f"{files[0]} is no catalogue"
            valid = "a pattern of .mo and .po files, such as 'po/*.po'"
            problems.append(Problem(code="no-file", path="corpus.path", message=what, valid=valid))
        found.update(fits)
    return sorted(found)


def messages(file: Path) -> Iterator[Found]:
    """All messages of a catalogue, the first form of those that have several; `Wrong` where it is none."""
    try:
        data = file.read_bytes()
    except OSError as error:
        raise Wrong("cannot-read", str(file), f"it cannot be read: {error.strerror}") from error
    pairs = _compiled(file) if file.suffix.lower() == ".mo" else list(_written(file, data))
    header = next((translation for message, translation, _ in pairs if not message), "")
    language = _language(file, header)
    for number, (message, translation, uncertain) in enumerate(pairs):
        if message:
            yield Found(f"{file}, message {number}", _single(message), _single(translation), language, uncertain)


def _language(file: Path, header: str) -> str:
    """What the header says; else the folder of the language that it lies in, or the file's own name."""
    said = _LANGUAGE.search(header)
    if said:
        return said[1]
    return file.parent.parent.name if file.parent.name == "LC_MESSAGES" else file.stem


def _single(text: str) -> str:
    return " ".join(text.rpartition(CONTEXT)[2].split())


def _compiled(file: Path) -> list[tuple[str, str, bool]]:
    try:
        with file.open("rb") as opened:
            catalogue: dict[Any, str] = vars(gettext.GNUTranslations(opened))["_catalog"]
    except (OSError, ValueError, struct.error, LookupError) as error:  # a text that is no text is a ValueError as well
        raise Wrong("broken-catalogue", str(file), f"it is no catalogue that gettext reads: {error}") from error
    found: list[tuple[str, str, bool]] = []
    for key, translation in catalogue.items():
        message, form = key if isinstance(key, tuple) else (key, 0)
        if form == 0:
            found.append((message, translation, False))
    return found


def _written(file: Path, data: bytes) -> Iterator[tuple[str, str, bool]]:
    charset = _CHARSET.search(data[:4096].decode("ascii", "replace"))
    name = charset[1] if charset and charset[1] != "CHARSET" else "utf-8"
    try:
        text = data.decode(name).removeprefix("\ufeff")
    except (UnicodeDecodeError, LookupError) as error:
        where = f"{file}:{data.count(10, 0, error.start) + 1}" if isinstance(error, UnicodeDecodeError) else str(file)
        raise Wrong("not-text", where, f"it is not {name}, as it says or does not deny: {error}") from error
    entry: dict[str, str] = {}
    last, uncertain = "", False
    for number, line in enumerate([*text.split("\n"), ""], start=1):
        stripped = line.strip()
        starts = stripped.startswith(("msgctxt", "msgid "))
        if "msgstr" in entry and (not stripped or starts or stripped.startswith("#")):
            yield entry.get("msgid", ""), entry["msgstr"], uncertain
            entry, last, uncertain = {}, "", False
        if stripped.startswith("#,"):
            uncertain = "fuzzy" in stripped
        if not stripped or stripped.startswith("#"):
            continue
        last = _added(entry, last, stripped, f"{file}:{number}")


def _added(entry: dict[str, str], last: str, line: str, where: str) -> str:
    """Puts one line of a catalogue into its entry, and says which part it belongs to."""
    match = _LINE.fullmatch(line)
    part = last if match is None or match[1] is None else match[1].removesuffix("[0]")
    if match is None or not part:
        raise Wrong("broken-catalogue", where, f"this is no line of a catalogue: {line[:60]!r}")
    entry[part] = entry.get(part, "") + _ESCAPE.sub(lambda found: _MEANT.get(found[1], found[1]), match[3])
    return part
