"""The user's own text files."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, ClassVar, final

from paribus import Corpus, Document, Example, Range, Split, Traits
from paribus_text.files import KINDS, Found, Reading, Unit
from paribus_text.glancing import glance
from paribus_text.splitting import SPLITS, Splitting


@final
class Text(Corpus):
    """Files of plain text, Markdown, JSON lines, CSV and Parquet, named by patterns (`data/**/*.txt`) or folders.

    A row of a table is a document; of plain text a file is, or a paragraph. Without files of its own, the
    validation split is chosen by a hash of each document's text: the same text is never in both splits, and neither the
    order nor the names of the files matter.
    """

    traits: ClassVar[Traits] = {"provides": ["sentences", "documents"]}

    def __init__(
        self,
        *,
        path: Annotated[
            tuple[str, ...],
            "folders, and patterns of .txt, .md, .jsonl, .csv, .tsv and .parquet files",
            Example(("corpus/**/*.txt",)),
        ],
        validation: Annotated[tuple[str, ...] | None, "patterns of the validation split's files"] = None,
        held_out: Annotated[float, "share held out, where `validation` is null", Range(above=0, high=0.5)] = 0.1,
        documents: Annotated[Unit, "what one document is, in a file of plain text"] = "file",
        field: Annotated[str, "the field of a row that holds the text"] = "text",
        languages: Annotated[bool, "whether the folder that a file lies in is its language (de/news.txt)"] = False,
    ) -> None:
        self._patterns: dict[Split, tuple[str, ...]] = {"train": path, "val": validation or ()}
        self._options = [path, validation, held_out, documents, field, languages]
        self._unit: Unit = documents
        self._field = field
        self._languages = languages
        self._splits = Splitting(self._reading, own=validation is not None, share=held_out)

    def documents(self, split: Split) -> Iterator[Document]:
        return self._splits.documents(split)

    def fingerprint(self) -> str:
        return self._splits.fingerprint()

    def quick_fingerprint(self) -> str | None:
        found = (self._reading(split, Counter()).files for split in SPLITS)
        return glance([*self._options, str(Path.cwd())], (path for files in found for path in files.paths()))

    def skipped_inputs(self) -> dict[str, int]:
        return self._splits.dropped()

    def _reading(self, split: Split, dropped: Counter[str]) -> Reading:
        option = "corpus.path" if split == "train" else "corpus.validation"
        files = Found(option, self._patterns[split], KINDS, [], dropped)
        return Reading(files, self._unit, self._field, self._languages)
