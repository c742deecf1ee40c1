"""Hugging Face's data sets, on disk or streamed."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Annotated, Any, ClassVar, final

from paribus import Corpus, DataError, Document, Example, Problem, Range, Split, Traits
from paribus_text.files import Found
from paribus_text.splitting import Splitting
from paribus_text.told import Columns

_COMMIT = re.compile(r"[0-9a-f]{40}")


@final
@dataclass(frozen=True)
class _Reading:
    """Rows of one split, as they are asked for."""

    rows: Iterable[Mapping[str, Any]]
    name: str
    columns: Columns
    files: Found

    @property
    def option(self) -> str:
        return self.files.option

    @property
    def problems(self) -> list[Problem]:
        return self.files.problems

    def all(self) -> Iterator[Document]:
        for number, values in enumerate(self.rows):
            where = f"{self.name}, row {number:,}"
            missing = [field for field in self.columns.fields if field not in values]
            if missing:
                had = ", ".join(map(repr, list(values)[:8]))
                self.files.wrong("no-field", where, f"there is no field {missing[0]!r}", f"a field of the rows: {had}")
                return
            yield from self.columns.documents(self.files, where, values)


@final
class Datasets(Corpus):
    """A data set of the library `datasets`: by name from the hub, or `json`, `csv`, `parquet`, `text` with files here.

    It is loaded by that library, which runs no code of the data set's and keeps what it fetched in a cache of its own.
    Streamed, nothing is fetched before it is read, and nothing kept: each reading goes over the network again. What is
    on the hub changes: only a `revision` that is a commit is known without another reading to be what it was.
    """

    traits: ClassVar[Traits] = {
        "provides": ["sentences", "documents", "pairs", "labels", "scores"],
        "where": {"pairs": "second", "labels": "label", "scores": "score"},
        "tells": {"classes": "classes"},
    }

    def __init__(  # noqa: PLR0913  # which data set, which rows, and which field is what
        self,
        *,
        dataset: Annotated[str, "its name, or json, csv, parquet or text for files", Example("json")],
        config: Annotated[str | None, "which of its configurations"] = None,
        files: Annotated[tuple[str, ...], "patterns of files, for json, csv, parquet and text"] = (),
        revision: Annotated[str | None, "a commit, a branch or a tag of the hub"] = None,
        split: Annotated[str, "the split to train on, in the library's words: train[:10%]"] = "train",
        validation: Annotated[str | None, "the split to validate on; null: a part of the other"] = None,
        held_out: Annotated[float, "share held out, where `validation` is null", Range(above=0, high=0.5)] = 0.1,
        most: Annotated[int | None, "so many rows of each split at most", Range(1)] = None,
        streaming: Annotated[bool, "read rows as they come, and keep none"] = False,
        text: Annotated[str, "the field that holds the text"] = "text",
        second: Annotated[str | None, "the field that holds the other text of a pair"] = None,
        label: Annotated[str | None, "the field that holds the class"] = None,
        score: Annotated[str | None, "the field that holds a number to be told"] = None,
        classes: Annotated[int, "how many classes there are", Range(2, 65536)] = 2,
        names: Annotated[tuple[str, ...], "what the classes are called, in their order, where labels are words"] = (),
    ) -> None:
        self._columns = Columns(text, second, label, score, classes, names)
        self._columns.check()
        self._source: dict[str, Any] = {"path": dataset, "name": config, "revision": revision, "streaming": streaming}
        if files:
            self._source["data_files"] = list(files)
        self._names: dict[Split, str] = {"train": split, "val": validation or ""}
        self._most = most
        self._options = [held_out, most, split, validation]
        self._splits = Splitting(self._reading, own=validation is not None, share=held_out)

    def documents(self, split: Split) -> Iterator[Document]:
        return self._splits.documents(split)

    def fingerprint(self) -> str:
        return self._splits.fingerprint()

    def quick_fingerprint(self) -> str | None:
        revision = self._source["revision"]
        if not isinstance(revision, str) or not _COMMIT.fullmatch(revision) or "data_files" in self._source:
            return None
        return json.dumps([self._source, self._options, self._columns])

    def classes(self) -> tuple[str, ...]:
        return tuple(self._columns.names)

    def skipped_inputs(self) -> dict[str, int]:
        return self._splits.dropped()

    def _reading(self, split: Split, dropped: Counter[str]) -> _Reading:
        option = "corpus.split" if split == "train" else "corpus.validation"
        name = self._names[split]
        rows = self._rows(name, option) if name else ()
        return _Reading(rows, f"{self._source['path']} {name}", self._columns, Found(option, (), (), [], dropped))

    def _rows(self, split: str, option: str) -> Iterable[Mapping[str, Any]]:
        try:
            import datasets
        except ImportError as error:
            what = "the corpus `datasets` takes the library of that name, which is not installed"
            valid = "pip install 'paribus[datasets]', or files for the corpora `text` and `table`"
            raise DataError(Problem(code="not-installed", path="corpus", message=what, valid=valid)) from error
        datasets.disable_progress_bars()
        try:
            found: Iterable[Mapping[str, Any]] = datasets.load_dataset(**self._source, split=split)
        except Exception as error:  # of many kinds, the library's, its file systems' and the network's
            first = next(iter(str(error).splitlines()), "")
            what = f"the library `datasets` does not load {self._source['path']!r}: {type(error).__name__}: {first}"
            valid = "a data set, files and a split that there are"
            raise DataError(Problem(code="no-dataset", path=option, message=what, valid=valid)) from error
        return islice(found, self._most) if self._most is not None else found
