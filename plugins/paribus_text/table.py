"""The user's own labelled files."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, ClassVar, NamedTuple, final

from paribus import Corpus, Document, Example, Problem, Range, Split, Traits
from paribus_text.files import Found
from paribus_text.glancing import glance
from paribus_text.rows import TABLES
from paribus_text.splitting import SPLITS, Splitting
from paribus_text.told import Columns


class _Reading(NamedTuple):
    files: Found
    columns: Columns

    @property
    def option(self) -> str:
        return self.files.option

    @property
    def problems(self) -> list[Problem]:
        return self.files.problems

    def all(self) -> Iterator[Document]:
        for path in self.files.paths():
            for where, values in self.files.rows(path, self.columns.fields):
                yield from self.columns.documents(self.files, where, values)


@final
class Table(Corpus):
    """Rows of CSV, TSV, JSON-lines and Parquet files: a text each, or a pair, and its class or its score.

    Labels are whole numbers from 0 on, or words, if `names` has them in their order. Without files of its own, the
    validation split is chosen by a hash of each row's texts, so that the same text is never in both.
    """

    traits: ClassVar[Traits] = {
        "provides": ["documents", "pairs", "labels", "scores"],
        "where": {"pairs": "second", "labels": "label", "scores": "score"},
        "tells": {"classes": "classes"},
    }

    def __init__(
        self,
        *,
        path: Annotated[tuple[str, ...], "folders, and patterns of files with rows", Example(("labelled/**/*.csv",))],
        validation: Annotated[tuple[str, ...] | None, "patterns of the validation split's files"] = None,
        held_out: Annotated[float, "share held out, where `validation` is null", Range(above=0, high=0.5)] = 0.1,
        text: Annotated[str, "the field that holds the text"] = "text",
        second: Annotated[str | None, "the field that holds the other text of a pair"] = None,
        label: Annotated[str | None, "the field that holds the class"] = None,
        score: Annotated[str | None, "the field that holds a number to be told"] = None,
        classes: Annotated[int, "how many classes there are", Range(2, 65536)] = 2,
        names: Annotated[tuple[str, ...], "what the classes are called, in their order, where labels are words"] = (),
    ) -> None:
        self._columns = Columns(text, second, label, score, classes, names)
        self._columns.check()
        self._patterns: dict[Split, tuple[str, ...]] = {"train": path, "val": validation or ()}
        self._share = held_out
        self._splits = Splitting(self._reading, own=validation is not None, share=held_out)

    def documents(self, split: Split) -> Iterator[Document]:
        return self._splits.documents(split)

    def fingerprint(self) -> str:
        return self._splits.fingerprint()

    def quick_fingerprint(self) -> str | None:
        found = (self._reading(split, Counter()).files for split in SPLITS)
        options = [self._patterns, self._share, self._columns, str(Path.cwd())]
        return glance(options, (path for files in found for path in files.paths()))

    def classes(self) -> tuple[str, ...]:
        return tuple(self._columns.names)

    def skipped_inputs(self) -> dict[str, int]:
        return self._splits.dropped()

    def _reading(self, split: Split, dropped: Counter[str]) -> _Reading:
        option = "corpus.path" if split == "train" else "corpus.validation"
        return _Reading(Found(option, self._patterns[split], TABLES, [], dropped), self._columns)
