"""Corpus of questions with several choices, in the formats of SWAG and of COPA."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, ClassVar, NamedTuple, final

from paribus import Corpus, CorpusTraits, Document, Example, Problem, Range, Split, join_names
from paribus_text.preview import preview
from paribus_text.split_folders import SplitFolders
from paribus_text.splitting import SPLITS, Splitting
from paribus_text.swag_files import FORMATS, ChoiceFormat, Task, as_choices, question
from paribus_text.table_rows import Row
from paribus_text.text_files import FileSet


class _Reader(NamedTuple):
    files: FileSet
    layout: ChoiceFormat

    @property
    def option(self) -> str:
        return self.files.option

    @property
    def problems(self) -> list[Problem]:
        return self.files.problems

    def documents(self) -> Iterator[Document]:
        fields = [self.layout.context, self.layout.start, *self.layout.choices, "label"]
        for path in self.files.paths():
            for row in self.files.rows(path, fields):
                yield from self._document(row)

    def _document(self, row: Row) -> Iterator[Document]:
        parts, label = question(self.layout, row.values), row.values["label"]
        if parts is None:
            known = join_names(self.layout.questions)
            valid = f"texts, and as `{self.layout.start}` {known}" if known else "texts"
            self.files.add_problem("no-text", row.location, "a field has no text, or another question", valid)
            return
        if label is None or label == "":
            self.files.dropped["rows without a label"] += 1
            return
        numbers = {str(number): number for number in range(len(self.layout.choices))}
        if str(label) not in numbers:
            valid = f"an integer from 0 to {len(numbers) - 1}, the number of the right choice"
            self.files.add_problem("missing-label", row.location, f"unknown label {label!r}", valid)
            return
        context, choices = self.files.to_sentences(parts[0]), as_choices(parts[1])
        if any(self.files.contains_nul(row.location, text) for text in (*context, *choices)):
            return
        if not all(choice.strip() for choice in choices):
            self.files.dropped["rows with an empty choice"] += 1
        elif context:
            yield Document(row.location, context, choices, labels=(numbers[str(label)],))


@final
class MultipleChoice(Corpus):
    """A context and several choices, one of which is right: "SWAG" (Zellers et al. 2018) in CSV files, or COPA
    (Roemmele et al. 2011) in the JSON lines of SuperGLUE.

    In SWAG, the context is `sent1`, and a choice is `sent2` with an ending. In COPA, the context is the premise with
    the question for its cause or its result. In a folder, the files `train` and `val` (or `dev`) are read. Without
    files for validation, a part is held out by a hash.
    """

    traits: ClassVar[CorpusTraits] = {"provides": ["documents", "pairs", "choices"]}

    def __init__(
        self,
        *,
        task: Annotated[Task, "format of the files", Example("swag")],
        path: Annotated[tuple[str, ...], "files, patterns of files, or one folder", Example(("swag",))],
        validation: Annotated[tuple[str, ...] | None, "patterns of the files of the validation split"] = None,
        held_out: Annotated[float, "share held out, without files for validation", Range(above=0, high=0.5)] = 0.1,
    ) -> None:
        self._layout = FORMATS[task]
        self._files = SplitFolders(path, validation, self._layout.files)
        self._options = [task, path, validation, held_out]
        self._splits = Splitting(
            self._reader, has_validation=self._files.has_validation, share=held_out, drops_shared=True
        )

    def documents(self, split: Split) -> Iterator[Document]:
        return self._splits.documents(split)

    def fingerprint(self) -> str:
        return self._splits.fingerprint()

    def quick_fingerprint(self) -> str | None:
        file_sets = (self._reader(split, Counter()).files for split in SPLITS)
        return preview([*self._options, str(Path.cwd())], (path for files in file_sets for path in files.paths()))

    def skipped_inputs(self) -> dict[str, int]:
        return self._splits.skipped_inputs()

    def _reader(self, split: Split, dropped: Counter[str]) -> _Reader:
        files = FileSet("corpus.path" if split == "train" else "corpus.validation", (), (".csv", ".jsonl"), [], dropped)
        return _Reader(files._replace(patterns=self._files.patterns(split, files)), self._layout)
