"""Corpus of a task of GLUE or SuperGLUE, from its folder."""

from __future__ import annotations

import glob
from collections import Counter
from collections.abc import Iterator
from dataclasses import astuple
from pathlib import Path
from typing import Annotated, ClassVar, NamedTuple, final

from paribus import Corpus, CorpusTraits, DataError, Document, Example, Problem, Split, join_names
from paribus_text.glue_tasks import LAYOUTS, Layout, Task, prepared
from paribus_text.holdout import digest
from paribus_text.preview import preview
from paribus_text.split_folders import find_files, missing_folder
from paribus_text.splitting import SPLITS, Splitting
from paribus_text.table_rows import Row
from paribus_text.text_files import FileSet
from paribus_text.unquoted_rows import unquoted_rows


class _Reader(NamedTuple):
    files: FileSet
    layout: Layout

    @property
    def option(self) -> str:
        return self.files.option

    @property
    def problems(self) -> list[Problem]:
        return self.files.problems

    def documents(self) -> Iterator[Document]:
        for path in self.files.paths():
            for location, values in self._rows(path):
                yield from self.layout.columns.documents(self.files, location, prepared(self.layout, values))

    def _rows(self, path: Path) -> Iterator[Row]:
        fields = [*self.layout.columns.fields, *([self.layout.prefix] if self.layout.prefix else [])]
        if path.suffix.lower() == ".jsonl":
            return self.files.rows(path, fields)
        return unquoted_rows(path, fields, self.layout.header, self.files.add_problem, self.files.dropped)


@final
class Glue(Corpus):
    """A task of "GLUE" (Wang et al. 2019) or "SuperGLUE" (Wang et al. 2019), from its folder as it is downloaded.

    The validation split is the file of the task (`dev.tsv`, `dev_matched.tsv`, `val.jsonl`). Training texts that it has
    too are dropped and counted. Texts are read as they are: quotes are characters. The first text of `wic` begins with
    the word; `boolq` is a question and a passage. Test files have no labels and are not read.
    """

    traits: ClassVar[CorpusTraits] = {
        "provides": ["documents", "pairs", "labels", "scores"],
        "provides_if": {
            "pairs": "task=mrpc|qqp|sts-b|mnli|mnli-mismatched|qnli|rte|wnli|boolq|cb|wic",
            "labels": "task=cola|sst-2|mrpc|qqp|mnli|mnli-mismatched|qnli|rte|wnli|boolq|cb|wic",
            "scores": "task=sts-b",
        },
    }

    def __init__(
        self,
        *,
        task: Annotated[Task, "task, whose columns are read", Example("mrpc")],
        path: Annotated[str, "folder of the task", Example("glue/MRPC")],
    ) -> None:
        self._task: Task = task
        self._folder = Path(path)
        self._splits = Splitting(self._reader, has_validation=True, drops_shared=True)

    def documents(self, split: Split) -> Iterator[Document]:
        return self._splits.documents(split)

    def fingerprint(self) -> str:
        return digest([self._splits.fingerprint(), *self.classes()])

    def quick_fingerprint(self) -> str | None:
        layout = self._layout()
        paths = [path for split in SPLITS for path in find_files(self._folder, layout.files[split])]
        return preview([self._task, repr(layout.header), repr(astuple(layout.columns)), str(Path.cwd())], paths)

    def classes(self) -> tuple[str, ...]:
        return LAYOUTS[self._task][0].columns.names

    def skipped_inputs(self) -> dict[str, int]:
        return self._splits.skipped_inputs()

    def _reader(self, split: Split, dropped: Counter[str]) -> _Reader:
        layout = self._layout()
        patterns = [glob.escape(str(path)) for path in find_files(self._folder, layout.files[split])]
        return _Reader(FileSet("corpus.path", patterns, (".tsv", ".jsonl"), [], dropped), layout)

    def _layout(self) -> Layout:
        """Return the layout whose files the folder has."""
        if not self._folder.is_dir():
            raise DataError(missing_folder("corpus.path", self._folder))
        layouts = LAYOUTS[self._task]
        for layout in layouts:
            if all(find_files(self._folder, layout.files[split]) for split in SPLITS):
                return layout
        expected = " or ".join(join_names(names[0] for names in layout.files.values()) for layout in layouts)
        found = join_names([path.name for path in sorted(self._folder.iterdir())][:8]) or "nothing"
        message = f"the folder {str(self._folder)!r} lacks a file of the task {self._task!r}; it has {found}"
        raise DataError(
            Problem(code="missing-file", path="corpus.path", message=message, valid=f"a folder with {expected}")
        )
