"""Files named by patterns, the documents in them, and the problems of each file."""

from __future__ import annotations

import glob
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import Literal, NamedTuple

from paribus import Document, Problem
from paribus_text.sentences import paragraphs, sentences
from paribus_text.table_rows import TABLES, UTF8, Row, rows

Unit = Literal["file", "paragraph"]

BLOCK = 1 << 24  # bytes of a file that are read at a time
KINDS = (".txt", ".md", *TABLES)
_SURROGATE = re.compile("[\ud800-\udfff]")  # JSON can hold half of a surrogate pair, which cannot be encoded


class FileSet(NamedTuple):
    """Files that match patterns, with the problems and the dropped inputs of reading them."""

    option: str  # name of the patterns in errors: "corpus.path"
    patterns: Sequence[str]
    kinds: Sequence[str]  # suffixes of files that are read; empty: any
    problems: list[Problem]
    dropped: Counter[str]
    sentences: bool = False  # split texts into sentences

    def add_problem(self, code: str, location: object, message: str, valid: str) -> None:
        self.problems.append(Problem(code=code, path=self.option, location=str(location), message=message, valid=valid))

    def paths(self) -> list[Path]:
        """Return the sorted paths; a folder stands for all files in it, at any depth."""
        matches: set[Path] = set()
        for pattern in self.patterns:
            is_folder = Path(pattern).is_dir()
            expanded = f"{glob.escape(pattern)}/**/*" if is_folder else pattern
            files = [Path(name) for name in glob.glob(expanded, recursive=True) if Path(name).is_file()]  # noqa: PTH207  # Path's takes no absolute one
            readable = [path for path in files if not self.kinds or path.suffix.lower() in self.kinds]
            if not files:
                message = f"no file matches {pattern!r} in {Path.cwd()}"
                if is_folder:
                    message = f"the folder {pattern!r} contains no file"
                kind = next(iter(self.kinds), "")
                valid = f"a file, a folder, or a pattern that files match, such as 'corpus/**/*{kind}'"
                self.add_problem("missing-file", "", message, valid)
            elif not readable:
                message = f"unknown kind of file {files[0].suffix!r}"
                self.add_problem("file-kind", files[0], message, ", ".join(self.kinds))
            self.dropped["files of an unknown kind"] += len(files) - len(readable)
            matches.update(readable)
        return sorted(matches)

    def rows(self, path: Path, fields: Sequence[str]) -> Iterator[Row]:
        problem_count = len(self.problems)
        is_empty = True
        for row in rows(path, fields, self.add_problem):
            is_empty = False
            yield row
        if is_empty and len(self.problems) == problem_count:
            self.dropped["files without text"] += 1

    def contains_nul(self, location: str, text: str) -> bool:
        """Return whether a text contains a NUL character, which is reported: such a file is not text."""
        if "\0" not in text:
            return False
        line = text.count("\n", 0, text.index("\0")) + 1
        valid = "text without NUL; a file in UTF-16 has them (iconv -f utf-16 -t utf-8 converts)"
        self.add_problem("nul-character", location, f"the text contains a NUL character, in its line {line}", valid)
        return True

    def to_sentences(self, text: str) -> tuple[str, ...]:
        """Return the sentences of a text, or the text as it is; one without text is counted as dropped."""
        if not text.isascii() and _SURROGATE.search(text):
            self.dropped["documents with half of a surrogate pair"] += 1
            return ()
        if not text or text.isspace():
            self.dropped["documents without text"] += 1
            return ()
        if not self.sentences:
            return (text,)
        return tuple(sentence for paragraph in paragraphs(text) for sentence in sentences(paragraph))


class TextReader(NamedTuple):
    """Reader of the documents in text files and tables."""

    files: FileSet
    unit: Unit
    field: str
    languages: bool  # the folder of a file names the language of its documents

    @property
    def option(self) -> str:
        return self.files.option

    @property
    def problems(self) -> list[Problem]:
        return self.files.problems

    def documents(self) -> Iterator[Document]:
        """Yield the documents of all files, in the order of their paths."""
        for path in self.files.paths():
            language = path.absolute().parent.name if self.languages else ""
            for name, text in self._texts(path):
                if self.files.contains_nul(name, text):
                    continue
                parts = self.files.to_sentences(text)
                if parts:
                    yield Document(name, parts, language=language)

    def _texts(self, path: Path) -> Iterator[tuple[str, str]]:
        """Yield names and texts of a file's documents."""
        if path.suffix.lower() in TABLES:
            for location, values in self.files.rows(path, [self.field]):
                text = values[self.field]
                if isinstance(text, str):
                    yield location, text
                elif text is None and path.suffix.lower() == ".parquet":
                    self.files.dropped["rows without a text"] += 1
                else:
                    message = f"the field {self.field!r} is {type(text).__name__}"
                    self.files.add_problem("no-text", location, message, "text in quotes")
            return
        problem_count, is_empty = len(self.problems), True
        if self.unit == "file":
            content = "".join(self._blocks(path))
            if content.strip() and len(self.problems) == problem_count:
                is_empty = False
                yield str(path), content
        else:
            for number, paragraph in enumerate(chain.from_iterable(map(paragraphs, self._blocks(path))), start=1):
                is_empty = False
                yield f"{path}, paragraph {number}", paragraph
        if is_empty and len(self.problems) == problem_count:
            self.files.dropped["files without text"] += 1

    def _blocks(self, path: Path) -> Iterator[str]:
        """Yield the text of a file in blocks that end between paragraphs, up to a byte that is not UTF-8."""
        offset, line = 0, 1
        data = b""
        try:
            with path.open("rb") as file:
                while block := file.read(BLOCK):
                    data += block
                    if end := _last_paragraph(data):
                        yield _decode(data[:end], is_first=offset == 0)
                        line += data.count(b"\n", 0, end)
                        offset += end
                        data = data[end:]
                yield _decode(data, is_first=offset == 0)
        except OSError as error:
            message = f"cannot read the file: {error.strerror}"
            self.files.add_problem("cannot-read", path, message, "a readable file")
        except UnicodeDecodeError as error:
            line += data.count(b"\n", 0, error.start)
            message = f"not UTF-8: byte {data[error.start]:#04x} at offset {offset + error.start:,}"
            self.files.add_problem("not-utf8", f"{path}:{line}", message, UTF8)


def _last_paragraph(data: bytes) -> int:
    """Return where the last paragraph starts, of those with one empty line and no space before them; or 0."""
    for empty_line in (b"\n\n", b"\r\n\r\n"):
        place = len(data)
        while (place := data.rfind(empty_line, 0, place)) >= 0:
            start = place + len(empty_line)
            if data[place - 1 : place].strip() and data[start : start + 1].strip():
                return start
    return 0


def _decode(data: bytes, *, is_first: bool) -> str:
    """Decode a block of a file, the first without its byte order mark."""
    return data.decode("utf-8-sig" if is_first else "utf-8").replace("\r\n", "\n")
