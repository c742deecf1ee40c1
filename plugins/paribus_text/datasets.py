"""Corpus of Hugging Face data sets, from files or streamed."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import Annotated, Any, ClassVar, Final, final

from paribus import (
    Corpus,
    CorpusTraits,
    DataError,
    Document,
    Example,
    Problem,
    Range,
    Split,
    closest_match,
    join_names,
    missing_package,
)
from paribus_text.columns import Columns
from paribus_text.preview import preview
from paribus_text.splitting import Splitting
from paribus_text.text_files import FileSet

FILE_FORMATS: Final = ("arrow", "csv", "json", "parquet", "text")  # names that stand for files
_COMMIT = re.compile(r"[0-9a-f]{40}")


@final
@dataclass(frozen=True)
class Splits:
    """Rows for training and for validation."""

    train: Annotated[str, "training split, in the library's syntax: train[:10%]"] = "train"
    validation: Annotated[str | None, "validation split; null: a part of the training split"] = None
    held_out: Annotated[float, "share held out, if `validation` is null", Range(above=0, high=0.5)] = 0.1
    max_rows: Annotated[int | None, "maximum number of rows of each split", Range(1)] = None


@final
@dataclass(frozen=True)
class _Reader:
    """Reader of the rows of one split."""

    rows: Iterable[Mapping[str, Any]]
    name: str
    columns: Columns
    files: FileSet

    @property
    def option(self) -> str:
        return self.files.option

    @property
    def problems(self) -> list[Problem]:
        return self.files.problems

    def documents(self) -> Iterator[Document]:
        for number, values in enumerate(self.rows):
            location = f"{self.name}, row {number:,}"
            missing = [field for field in self.columns.fields if field not in values]
            if missing:
                keys = ", ".join(map(repr, list(values)[:8]))
                valid = f"a field of the rows: {keys}"
                self.files.add_problem("missing-field", location, f"unknown field {missing[0]!r}", valid)
                return
            yield from self.columns.documents(self.files, location, values)


@final
class Datasets(Corpus):
    """A data set of the library `datasets`: by name from the hub, a folder of `save_to_disk`, or `json`, `csv`,
    `parquet`, `text` with local files. Texts keep their spaces and line breaks, unless they are split into `sentences`.

    The library loads it without running code of the data set, and caches it. With `streaming`, rows are fetched as they
    are read and not cached, so each reading uses the network. Data sets on the hub may change: only with a commit as
    `revision` is the content known to be the same without reading it again.
    """

    traits: ClassVar[CorpusTraits] = {
        "provides": ["sentences", "documents", "pairs", "labels", "scores"],
        "provides_if": {
            "sentences": "sentences",
            "pairs": "columns.second",
            "labels": "columns.label",
            "scores": "columns.score",
        },
        "document_facts": {"classes": "columns.classes|columns.names"},
    }

    def __init__(
        self,
        *,
        dataset: Annotated[str, "name, folder of save_to_disk, or json, csv, parquet, text for files", Example("json")],
        config: Annotated[str | None, "configuration of the data set"] = None,
        files: Annotated[tuple[str, ...], "patterns of files, for json, csv, parquet and text"] = (),
        revision: Annotated[str | None, "a commit, a branch or a tag of the hub"] = None,
        streaming: Annotated[bool, "fetch rows as they are read, without a cache"] = False,
        splits: Splits = Splits(),
        columns: Columns = Columns(),
        sentences: Annotated[bool, "split texts into sentences, by rules for English"] = False,
    ) -> None:
        columns.check("corpus.columns")
        self._columns = columns
        self._source: dict[str, Any] = {"path": dataset, "name": config, "revision": revision, "streaming": streaming}
        if files:
            self._source["data_files"] = list(files)
        self._split_options = splits
        self._options = [asdict(splits), asdict(columns), sentences]
        self._sentences = sentences
        has_validation = splits.validation is not None
        self._splits = Splitting(self._reader, has_validation=has_validation, share=splits.held_out)

    def documents(self, split: Split) -> Iterator[Document]:
        return self._splits.documents(split)

    def fingerprint(self) -> str:
        return self._splits.fingerprint()

    def quick_fingerprint(self) -> str | None:
        folder = Path(self._source["path"])
        if _is_saved(folder):
            return preview([self._source, self._options, str(Path.cwd())], sorted(folder.rglob("*.arrow")))
        revision = self._source["revision"]
        if not isinstance(revision, str) or not _COMMIT.fullmatch(revision) or "data_files" in self._source:
            return None
        return json.dumps([self._source, self._options])

    def classes(self) -> tuple[str, ...]:
        return tuple(self._columns.names)

    def skipped_inputs(self) -> dict[str, int]:
        return self._splits.skipped_inputs()

    def _reader(self, split: Split, dropped: Counter[str]) -> _Reader:
        key = "train" if split == "train" else "validation"
        option, name = f"corpus.splits.{key}", getattr(self._split_options, key)
        rows = self._rows(name, option) if name else ()
        files = FileSet(option, (), (), [], dropped, self._sentences)
        return _Reader(rows, f"{self._source['path']} {name}", self._columns, files)

    def _rows(self, split: str, option: str) -> Iterable[Mapping[str, Any]]:
        try:
            import datasets
        except ImportError as error:
            user, alternative = "the corpus `datasets`", "files for the corpora `text` and `table`"
            raise DataError(
                missing_package("datasets", "datasets", user, path="corpus", alternative=alternative)
            ) from error
        self._check_files()
        datasets.disable_progress_bars()
        try:
            folder = Path(self._source["path"])
            rows: Iterable[Mapping[str, Any]] = (
                self._saved_rows(datasets.load_from_disk(str(folder)), split, option)
                if _is_saved(folder)
                else datasets.load_dataset(**self._source, split=split)
            )
        except DataError:
            raise
        except Exception as error:  # of the library, its file systems or the network
            reason = next(iter(str(error).splitlines()), "")
            message = f"cannot load the data set {self._source['path']!r}: {type(error).__name__}: {reason}"
            valid = "an existing data set, files and split"
            raise DataError(Problem(code="missing-dataset", path=option, message=message, valid=valid)) from error
        max_rows = self._split_options.max_rows
        return rows if max_rows is None else islice(rows, max_rows)

    def _check_files(self) -> None:
        """Raise an error if no files are named, since the library would read all files of the working folder."""
        if self._source["path"] in FILE_FORMATS and "data_files" not in self._source:
            message = f"the data set {self._source['path']!r} reads files, and none are named"
            valid = "patterns of files, such as ['data/*.json']"
            raise DataError(Problem(code="missing-dataset", path="corpus.files", message=message, valid=valid))

    def _saved_rows(self, saved: Any, split: str, option: str) -> Iterable[Mapping[str, Any]]:
        """Return a split of a saved `DatasetDict`; a saved `Dataset` is the split `train`."""
        unused = [key for key in ("name", "revision", "data_files") if self._source.get(key)]
        if unused:
            message = f"{self._source['path']!r} is a folder of `save_to_disk`, which has no {', '.join(unused)}"
            raise DataError(Problem(code="unused-option", path="corpus", message=message, valid="splits"))
        splits: Mapping[str, Iterable[Mapping[str, Any]]] = saved if isinstance(saved, Mapping) else {"train": saved}
        if split not in splits:
            message = f"unknown split {split!r} in {self._source['path']!r}"
            raise DataError(
                Problem(
                    code="missing-dataset",
                    path=option,
                    message=message,
                    valid=join_names(splits),
                    suggestion=closest_match(split, splits),
                )
            )
        return splits[split]


def _is_saved(folder: Path) -> bool:
    """Return whether `save_to_disk` wrote the folder."""
    return (folder / "dataset_dict.json").is_file() or (folder / "state.json").is_file()
