"""Corpus of labelled rows in the user's files."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import astuple
from pathlib import Path
from typing import Annotated, ClassVar, NamedTuple, final

from paribus import Corpus, CorpusTraits, Document, Example, Problem, Range, Split
from paribus_text.columns import Columns
from paribus_text.preview import preview
from paribus_text.splitting import SPLITS, Splitting
from paribus_text.table_rows import TABLES
from paribus_text.text_files import FileSet


class _Reader(NamedTuple):
    files: FileSet
    columns: Columns

    @property
    def option(self) -> str:
        return self.files.option

    @property
    def problems(self) -> list[Problem]:
        return self.files.problems

    def documents(self) -> Iterator[Document]:
        for path in self.files.paths():
            for location, values in self.files.rows(path, self.columns.fields):
                yield from self.columns.documents(self.files, location, values)


@final
class Table(Corpus):
    """Rows of CSV, TSV, JSON-lines and Parquet files, each with a text or a pair of texts, and a class or a score.

    Labels are integers from 0, or words that `names` lists in order. Without files for validation, the validation split
    is chosen by a hash of each row's texts, so the same text is never in both.
    """

    traits: ClassVar[CorpusTraits] = {
        "provides": ["documents", "pairs", "labels", "scores"],
        "provides_if": {"pairs": "second", "labels": "label", "scores": "score"},
        "document_facts": {"classes": "classes|names"},
    }

    def __init__(
        self,
        *,
        path: Annotated[tuple[str, ...], "folders, and patterns of files with rows", Example(("labelled/**/*.csv",))],
        validation: Annotated[tuple[str, ...] | None, "patterns of the files of the validation split"] = None,
        held_out: Annotated[float, "share held out, if `validation` is null", Range(above=0, high=0.5)] = 0.1,
        text: Annotated[str, "field of the text"] = "text",
        second: Annotated[str | None, "field of the second text of a pair"] = None,
        label: Annotated[str | None, "field of the class"] = None,
        score: Annotated[str | None, "field of the score to predict"] = None,
        classes: Annotated[int | None, "number of classes; null: that of `names`, or else 2", Range(2, 65536)] = None,
        names: Annotated[tuple[str, ...], "names of the classes in order, if labels are words"] = (),
    ) -> None:
        self._columns = Columns(text, second, label, score, classes, names)
        self._columns.check("corpus")
        self._patterns: dict[Split, tuple[str, ...]] = {"train": path, "val": validation or ()}
        self._share = held_out
        self._splits = Splitting(self._reader, has_validation=validation is not None, share=held_out)

    def documents(self, split: Split) -> Iterator[Document]:
        return self._splits.documents(split)

    def fingerprint(self) -> str:
        return self._splits.fingerprint()

    def quick_fingerprint(self) -> str | None:
        file_sets = (self._reader(split, Counter()).files for split in SPLITS)
        options = [self._patterns, self._share, astuple(self._columns), str(Path.cwd())]
        return preview(options, (path for files in file_sets for path in files.paths()))

    def classes(self) -> tuple[str, ...]:
        return tuple(self._columns.names)

    def skipped_inputs(self) -> dict[str, int]:
        return self._splits.skipped_inputs()

    def _reader(self, split: Split, dropped: Counter[str]) -> _Reader:
        option = "corpus.path" if split == "train" else "corpus.validation"
        return _Reader(FileSet(option, self._patterns[split], TABLES, [], dropped), self._columns)
