"""Documents out of files, and everything that can be wrong with a file, all of it at once."""

from __future__ import annotations

import glob
import json
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Literal, NamedTuple

from paribus import DataError, Document, Problem
from paribus_text.sentences import paragraphs, sentences

Unit = Literal["file", "paragraph"]

KINDS = (".txt", ".md", ".jsonl")
_HALF = re.compile("[\ud800-\udfff]")  # JSON can spell half of a surrogate pair, and nothing can write it
MOST = 20  # problems told one by one


class Reading(NamedTuple):
    """How files are read, and what was found wrong or left out on the way."""

    option: str  # what an error calls the patterns: "corpus.path"
    patterns: Sequence[str]
    unit: Unit
    field: str
    languages: bool  # whether the folder of a file is the language of its documents
    problems: list[Problem]
    dropped: Counter[str]

    def all(self) -> Iterator[Document]:
        """The documents of all the files that match, in the order of their paths; `check` tells what was wrong."""
        for path in self.matching():
            yield from self._file(path)

    def _wrong(self, code: str, where: object, what: str, valid: str) -> None:
        self.problems.append(Problem(code=code, path=self.option, where=str(where), what=what, valid=valid))

    def matching(self) -> list[Path]:
        found: set[Path] = set()
        for pattern in self.patterns:
            paths = [Path(name) for name in glob.glob(pattern, recursive=True)]  # noqa: PTH207  # Path's takes no absolute one
            files = [path for path in paths if path.is_file()]
            if not files:
                what = f"{pattern!r} is no file" if paths else f"no file matches {pattern!r} in {Path.cwd()}"
                self._wrong(
                    "no-file", "", what, f"a file, or a pattern that files match, such as {_pattern(pattern)!r}"
                )
            fits = [path for path in files if path.suffix.lower() in KINDS]
            if files and not fits:
                self._wrong(
                    "file-kind", files[0], f"the kind of file {files[0].suffix!r} is not read", ", ".join(KINDS)
                )
            self.dropped["files of a kind that is not read"] += len(files) - len(fits)
            found.update(fits)
        return sorted(found)

    def _file(self, path: Path) -> Iterator[Document]:
        try:
            data = path.read_bytes()
            text = data.decode("utf-8-sig").replace("\r\n", "\n")
        except OSError as error:
            return self._wrong("cannot-read", path, f"it cannot be read: {error.strerror}", "a file that you may read")
        except UnicodeDecodeError as error:
            line = data.count(b"\n", 0, error.start) + 1
            byte = data[error.start]
            what = f"it is not UTF-8: byte {byte:#04x} at offset {error.start:,}"
            return self._wrong("not-utf8", f"{path}:{line}", what, "UTF-8 (iconv -f latin1 -t utf-8 converts)")
        if not text.strip():
            self.dropped["files without text"] += 1
            return None
        for name, found in self._texts(path, text):
            if _HALF.search(found):
                self.dropped["documents with half of a surrogate pair"] += 1
                continue
            parts = tuple(sentence for paragraph in paragraphs(found) for sentence in sentences(paragraph))
            if parts:
                yield Document(name, parts, language=path.absolute().parent.name if self.languages else "")
            else:
                self.dropped["documents without text"] += 1
        return None

    def _texts(self, path: Path, text: str) -> Iterator[tuple[str, str]]:
        """Names and texts of a file's documents."""
        if path.suffix.lower() == ".jsonl":
            for number, line in enumerate(
                text.split("\n"), start=1
            ):  # splitlines would cut at U+2028, which JSON allows
                if line.strip():
                    found = self._line(f"{path}:{number}", line)
                    if found is not None:
                        yield f"{path}:{number}", found
        elif self.unit == "file":
            yield str(path), text
        else:
            for place, paragraph in enumerate(paragraphs(text), start=1):
                yield f"{path}, paragraph {place}", paragraph

    def _line(self, where: str, line: str) -> str | None:
        valid = f'one object a line, such as {{"{self.field}": "…"}}'
        try:
            value = json.loads(line)
        except (ValueError, RecursionError) as error:
            return self._wrong("broken-json", where, f"this line is no JSON: {error}", valid)
        if not isinstance(value, dict):
            return self._wrong("broken-json", where, f"this line is no object, but {type(value).__name__}", valid)
        if self.field not in value:
            keys = ", ".join(map(repr, list(value)[:8])) or "none"
            return self._wrong("no-field", where, f"there is no field {self.field!r}", f"corpus.field: one of {keys}")
        found = value[self.field]
        if not isinstance(found, str):
            return self._wrong(
                "no-text", where, f"the field {self.field!r} is {type(found).__name__}", "text in quotes"
            )
        return found


def check(*readings: Reading) -> None:
    """Raises what was wrong in all that was read."""
    problems = [problem for reading in readings for problem in reading.problems]
    if len(problems) > MOST:
        what = f"{len(problems) - MOST:,} more problems like these"
        problems[MOST:] = [Problem(code="more", path=readings[0].option, what=what)]
    if problems:
        raise DataError(*problems)


def _pattern(pattern: str) -> str:
    return f"{pattern.rstrip('/')}/**/*.txt" if Path(pattern).is_dir() else "corpus/**/*.txt"
