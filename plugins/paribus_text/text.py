"""Corpus of the user's text files."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, ClassVar, final

from paribus import Corpus, CorpusTraits, Document, Example, Range, Split
from paribus_text.preview import preview
from paribus_text.splitting import SPLITS, Splitting
from paribus_text.text_files import KINDS, FileSet, TextReader, Unit


@final
class Text(Corpus):
    """Files of plain text, Markdown, JSON lines, CSV and Parquet, named by patterns (`data/**/*.txt`) or folders.

    A document is a row of a table, or a file or paragraph of plain text. It keeps its spaces and line breaks, unless it
    is split into `sentences`, which are joined by single spaces. Without files for validation, the validation
    split is chosen by a hash of each document's text: the same text is never in both splits, and neither the order nor
    the names of the files matter.
    """

    traits: ClassVar[CorpusTraits] = {
        "provides": ["sentences", "documents"],
        "provides_if": {"sentences": "sentences"},
    }

    def __init__(
        self,
        *,
        path: Annotated[
            tuple[str, ...],
            "folders, and patterns of .txt, .md, .jsonl, .csv, .tsv and .parquet files",
            Example(("corpus/**/*.txt",)),
        ],
        validation: Annotated[tuple[str, ...] | None, "patterns of the files of the validation split"] = None,
        held_out: Annotated[float, "share held out, if `validation` is null", Range(above=0, high=0.5)] = 0.1,
        documents: Annotated[Unit, "unit of a document in a file of plain text"] = "file",
        field: Annotated[str, "field of the text in a row"] = "text",
        languages: Annotated[bool, "take the folder of a file as its language (de/news.txt)"] = False,
        sentences: Annotated[bool, "split documents into sentences, by rules for English"] = False,
    ) -> None:
        self._patterns: dict[Split, tuple[str, ...]] = {"train": path, "val": validation or ()}
        self._options = [path, validation, held_out, documents, field, languages, sentences]
        self._unit: Unit = documents
        self._field = field
        self._languages = languages
        self._sentences = sentences
        self._splits = Splitting(self._reader, has_validation=validation is not None, share=held_out)

    def documents(self, split: Split) -> Iterator[Document]:
        return self._splits.documents(split)

    def fingerprint(self) -> str:
        return self._splits.fingerprint()

    def quick_fingerprint(self) -> str | None:
        file_sets = (self._reader(split, Counter()).files for split in SPLITS)
        return preview([*self._options, str(Path.cwd())], (path for files in file_sets for path in files.paths()))

    def skipped_inputs(self) -> dict[str, int]:
        return self._splits.skipped_inputs()

    def _reader(self, split: Split, dropped: Counter[str]) -> TextReader:
        option = "corpus.path" if split == "train" else "corpus.validation"
        files = FileSet(option, self._patterns[split], KINDS, [], dropped, self._sentences)
        return TextReader(files, self._unit, self._field, self._languages)
