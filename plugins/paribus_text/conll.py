"""Corpus of words with tags in columns, as the shared tasks of CoNLL have them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar, Final, Literal, NamedTuple, final

from paribus import Corpus, CorpusTraits, Document, Example, Problem, Range, Split, join_names
from paribus_text.conll_tags import OUTSIDE, Scheme, converted
from paribus_text.holdout import digest
from paribus_text.preview import preview
from paribus_text.problems import raise_problems
from paribus_text.split_folders import SplitFolders
from paribus_text.splitting import SPLITS, Splitting
from paribus_text.table_rows import lines
from paribus_text.text_files import FileSet

NAMES: Final[dict[Split, tuple[str, ...]]] = {
    "train": ("*.train", "train.*"),
    "val": ("*.testa", "testa.*", "valid.*", "validation.*", "dev.*", "*.dev"),
}
DOCUMENT_START: Final = "-DOCSTART-"


class _Sentence(NamedTuple):
    """Sentence, with the location of its first line."""

    location: str
    words: list[str]
    tags: list[str]
    starts_document: bool


@final
@dataclass(frozen=True)
class _Format:
    """Format of the lines, and the unit of a document."""

    column: int
    scheme: Scheme
    unit: Literal["sentence", "document"]

    def sentences(self, files: FileSet, path: Path) -> Iterator[_Sentence]:
        """Yield the sentences of a file, which blank lines separate, with their tags in the scheme."""
        words: list[str] = []
        tags: list[str] = []
        start, is_first, count = 0, True, 0
        for number, line in lines(path, files.add_problem):
            fields = [field for field in line.rstrip("\r\n").split("\t" if "\t" in line else " ") if field.strip()]
            is_marker = bool(fields) and fields[0] == DOCUMENT_START
            if not fields or is_marker:
                if words:
                    yield _Sentence(f"{path}:{start}", words, converted(tags, self.scheme), is_first)
                    is_first = False
                words, tags = [], []
                is_first = is_first or is_marker
                continue
            count = count or len(fields)
            if not self._has_columns(files, f"{path}:{number}", fields, count):
                return
            start = start if words else number
            words.append(fields[0])
            tags.append(fields[self.column])
        if words:
            yield _Sentence(f"{path}:{start}", words, converted(tags, self.scheme), is_first)

    def _has_columns(self, files: FileSet, location: str, fields: list[str], count: int) -> bool:
        if len(fields) != count:
            message = f"expected {count} columns, as in the first line, got {len(fields)}"
            files.add_problem(
                "columns", location, message, "a word and its tags in each line, blank lines between sentences"
            )
            return False
        if self.column == 0 or not -count < self.column < count:
            message = f"there is no column {self.column} of tags in {count} columns (`corpus.column`)"
            files.add_problem("columns", location, message, f"1 to {count - 1}, or -1 for the last")
            return False
        return True


class _Reader(NamedTuple):
    files: FileSet
    format: _Format
    names: tuple[str, ...]

    @property
    def option(self) -> str:
        return self.files.option

    @property
    def problems(self) -> list[Problem]:
        return self.files.problems

    def sentences(self) -> Iterator[_Sentence]:
        for path in self.files.paths():
            yield from self.format.sentences(self.files, path)

    def documents(self) -> Iterator[Document]:
        numbers = {name: float(number) for number, name in enumerate(self.names)}
        location = ""
        words: list[str] = []
        labels: list[float] = []
        for sentence in self.sentences():
            if words and (self.format.unit == "sentence" or sentence.starts_document):
                yield Document(location, tuple(words), labels=tuple(labels))
                words, labels = [], []
            unknown = [tag for tag in sentence.tags if tag not in numbers]
            if unknown:
                message, valid = f"unknown tag {unknown[0]!r}", join_names(self.names) or "(none)"
                self.files.add_problem("missing-label", sentence.location, message, valid)
                continue
            location = location if words else sentence.location
            words += sentence.words
            labels += [numbers[tag] for tag in sentence.tags]
        if words:
            yield Document(location, tuple(words), labels=tuple(labels))


@final
class Conll(Corpus):
    """Words with tags, one to a line, in columns separated by spaces or tabs: "Introduction to the CoNLL-2003 Shared
    Task" (Tjong Kim Sang & De Meulder 2003).

    The word is the first column. Blank lines end a sentence, lines of `-DOCSTART-` a document. In a folder, the files
    of training and validation are found by name (`eng.train` and `eng.testa`, `train.txt` and `valid.txt` or
    `dev.txt`). Without files for validation, a part is held out by a hash. Training documents that the validation files
    have too are dropped and counted. Without `names`, the tags are those of the training files: O, then the others in
    order.
    """

    traits: ClassVar[CorpusTraits] = {"provides": ["documents", "tags"], "document_facts": {"classes": "names"}}

    def __init__(
        self,
        *,
        path: Annotated[tuple[str, ...], "files, patterns of files, or one folder", Example(("conll2003/eng.train",))],
        validation: Annotated[tuple[str, ...] | None, "patterns of the files of the validation split"] = None,
        held_out: Annotated[float, "share held out, without files for validation", Range(above=0, high=0.5)] = 0.1,
        column: Annotated[int, "column of the tags: 1 is the one after the word, -1 the last"] = -1,
        names: Annotated[tuple[str, ...], "names of the tags in order; empty: those of the training files"] = (),
        scheme: Annotated[Scheme, "scheme to write tags of entities in; file: they are left as they are"] = "file",
        documents: Annotated[Literal["sentence", "document"], "unit of a document"] = "sentence",
    ) -> None:
        self._files = SplitFolders(path, validation, NAMES)
        self._options = [path, validation, held_out, column, names, scheme, documents]
        self._format = _Format(column, scheme, documents)
        self._names = names
        self._found: tuple[str, ...] | None = None
        self._splits = Splitting(
            self._reader, has_validation=self._files.has_validation, share=held_out, drops_shared=True
        )

    def documents(self, split: Split) -> Iterator[Document]:
        return self._splits.documents(split)

    def fingerprint(self) -> str:
        self._found = None  # the files may have changed
        return digest([self._splits.fingerprint(), *self.classes()])

    def quick_fingerprint(self) -> str | None:
        file_sets = (self._file_set(split, Counter()) for split in SPLITS)
        return preview([*self._options, str(Path.cwd())], (path for files in file_sets for path in files.paths()))

    def classes(self) -> tuple[str, ...]:
        if self._names:
            return self._names
        if self._found is None:
            reader = _Reader(self._file_set("train", Counter()), self._format, ())
            tags = {tag for sentence in reader.sentences() for tag in sentence.tags}
            raise_problems(reader.problems)
            self._found = tuple(sorted(tags, key=lambda tag: (tag != OUTSIDE, tag)))
        return self._found

    def skipped_inputs(self) -> dict[str, int]:
        return self._splits.skipped_inputs()

    def _reader(self, split: Split, dropped: Counter[str]) -> _Reader:
        return _Reader(self._file_set(split, dropped), self._format, self.classes())

    def _file_set(self, split: Split, dropped: Counter[str]) -> FileSet:
        files = FileSet("corpus.path" if split == "train" else "corpus.validation", (), (), [], dropped)
        return files._replace(patterns=self._files.patterns(split, files))
