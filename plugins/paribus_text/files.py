"""Which files patterns name, and the documents in them: everything that can be wrong with a file, all of it at once."""

from __future__ import annotations

import glob
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Literal, NamedTuple

from paribus import Document, Problem
from paribus_text.rows import TABLES, UTF8, Row, rows
from paribus_text.sentences import paragraphs, sentences

Unit = Literal["file", "paragraph"]

KINDS = (".txt", ".md", *TABLES)
_HALF = re.compile("[\ud800-\udfff]")  # JSON can spell half of a surrogate pair, and nothing can write it


class Found(NamedTuple):
    """The files that patterns name, and what was found wrong or left out on the way."""

    option: str  # what an error calls the patterns: "corpus.path"
    patterns: Sequence[str]
    kinds: Sequence[str]
    problems: list[Problem]
    dropped: Counter[str]

    def wrong(self, code: str, where: object, what: str, valid: str) -> None:
        self.problems.append(Problem(code=code, path=self.option, location=str(where), message=what, valid=valid))

    def paths(self) -> list[Path]:
        """In their order; of a folder, the files that are read, however deep they lie."""
        found: set[Path] = set()
        for pattern in self.patterns:
            inside = f"{glob.escape(pattern)}/**/*" if Path(pattern).is_dir() else pattern
            files = [Path(name) for name in glob.glob(inside, recursive=True) if Path(name).is_file()]  # noqa: PTH207  # Path's takes no absolute one
            fits = [path for path in files if path.suffix.lower() in self.kinds]
            if not files:
                what = f"no file matches {pattern!r} in {Path.cwd()}"
                if Path(pattern).is_dir():
                    what = f"there is no file in the folder {pattern!r}"
                valid = f"a file, a folder, or a pattern that files match, such as 'corpus/**/*{self.kinds[0]}'"
                self.wrong("no-file", "", what, valid)
            elif not fits:
                what = f"the kind of file {files[0].suffix!r} is not read"
                self.wrong("file-kind", files[0], what, ", ".join(self.kinds))
            self.dropped["files of a kind that is not read"] += len(files) - len(fits)
            found.update(fits)
        return sorted(found)

    def rows(self, path: Path, fields: Sequence[str]) -> Iterator[Row]:
        count = len(self.problems)
        empty = True
        for row in rows(path, fields, self.wrong):
            empty = False
            yield row
        if empty and len(self.problems) == count:
            self.dropped["files without text"] += 1

    def parts(self, text: str) -> tuple[str, ...]:
        """The sentences of a text; none, and that is counted, where it has none."""
        if _HALF.search(text):
            self.dropped["documents with half of a surrogate pair"] += 1
            return ()
        parts = tuple(sentence for paragraph in paragraphs(text) for sentence in sentences(paragraph))
        if not parts:
            self.dropped["documents without text"] += 1
        return parts


class Reading(NamedTuple):
    """How files of text are read."""

    files: Found
    unit: Unit
    field: str
    languages: bool  # whether the folder of a file is the language of its documents

    @property
    def option(self) -> str:
        return self.files.option

    @property
    def problems(self) -> list[Problem]:
        return self.files.problems

    def all(self) -> Iterator[Document]:
        """The documents of all the files that match, in the order of their paths."""
        for path in self.files.paths():
            language = path.absolute().parent.name if self.languages else ""
            for name, text in self._texts(path):
                parts = self.files.parts(text)
                if parts:
                    yield Document(name, parts, language=language)

    def _texts(self, path: Path) -> Iterator[tuple[str, str]]:
        """Names and texts of a file's documents."""
        if path.suffix.lower() in TABLES:
            for where, values in self.files.rows(path, [self.field]):
                found = values[self.field]
                if isinstance(found, str):
                    yield where, found
                elif found is None and path.suffix.lower() == ".parquet":
                    self.files.dropped["rows without a text"] += 1
                else:
                    what = f"the field {self.field!r} is {type(found).__name__}"
                    self.files.wrong("no-text", where, what, "text in quotes")
            return
        whole = self._whole(path)
        if whole is not None and not whole.strip():
            self.files.dropped["files without text"] += 1
        elif whole is not None and self.unit == "file":
            yield str(path), whole
        elif whole is not None:
            for place, paragraph in enumerate(paragraphs(whole), start=1):
                yield f"{path}, paragraph {place}", paragraph

    def _whole(self, path: Path) -> str | None:
        try:
            data = path.read_bytes()
            return data.decode("utf-8-sig").replace("\r\n", "\n")
        except OSError as error:
            what = f"it cannot be read: {error.strerror}"
            return self.files.wrong("cannot-read", path, what, "a file that you may read")
        except UnicodeDecodeError as error:
            line = data.count(b"\n", 0, error.start) + 1
            what = f"it is not UTF-8: byte {data[error.start]:#04x} at offset {error.start:,}"
            return self.files.wrong("not-utf8", f"{path}:{line}", what, UTF8)
