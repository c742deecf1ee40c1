"""Corpus of questions and contexts in the format of SQuAD."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, ClassVar, Final, NamedTuple, final

from paribus import Corpus, CorpusTraits, Document, Example, Problem, Range, Split
from paribus_text.context_words import TEXTS, Context
from paribus_text.preview import preview
from paribus_text.split_folders import SplitFolders
from paribus_text.splitting import SPLITS, Splitting
from paribus_text.squad_files import Question, questions
from paribus_text.text_files import FileSet

NAMES: Final[dict[Split, tuple[str, ...]]] = {"train": ("train*.json",), "val": ("dev*.json", "validation*.json")}
NO_ANSWER: Final = (-1.0, -1.0)


class _Reader(NamedTuple):
    files: FileSet

    @property
    def option(self) -> str:
        return self.files.option

    @property
    def problems(self) -> list[Problem]:
        return self.files.problems

    def documents(self) -> Iterator[Document]:
        """Yield the questions, with all answers and the numbers of the words of their contexts."""
        context = Context("")
        for path in self.files.paths():
            for question in questions(path, self.files.add_problem):
                if question.context != context.text:
                    context = Context(question.context)
                labels = self._answers(question, context)
                text = self.files.to_sentences(question.text)
                if labels and text and context.words and not self.files.contains_nul(question.location, question.text):
                    yield Document(question.location, text, context.words, labels=(*labels, TEXTS, *context.numbers))

    def _answers(self, question: Question, context: Context) -> tuple[float, ...]:
        """Return the first and the last word of each answer; nothing for a question that is dropped."""
        if question.is_impossible:
            return NO_ANSWER
        places: dict[tuple[int, int], None] = {}
        for answer, start in question.answers:
            if context.text[start : start + len(answer)] != answer or not answer.strip():
                self.files.dropped["answers that are not at their place in the context"] += 1
                continue
            place = context.words_of(start, start + len(answer))
            if place is None:
                self.files.dropped["answers without a word"] += 1
                continue
            places[place.first, place.last] = None
            self.files.dropped["answers that are a part of a word, widened to the word"] += place.is_widened
        if not places:
            self.files.dropped["questions without an answer that are not marked as impossible"] += 1
        return tuple(float(word) for place in places for word in place)


@final
class Squad(Corpus):
    """Questions and contexts in the JSON files of "SQuAD" 1.1 (Rajpurkar et al. 2016) and 2.0 (Rajpurkar, Jia & Liang
    2018).

    The context is split into words and punctuation marks. Training uses the first answer; in validation, all answers
    are accepted and their texts are compared as the script of SQuAD does. Impossible questions have no answer. In a
    folder, the files `train*.json` and `dev*.json` are read. Without files for validation, a part is held out by a
    hash.
    """

    traits: ClassVar[CorpusTraits] = {"provides": ["documents", "pairs", "answers"]}

    def __init__(
        self,
        *,
        path: Annotated[tuple[str, ...], "files, patterns of files, or one folder", Example(("train-v1.1.json",))],
        validation: Annotated[tuple[str, ...] | None, "patterns of the files of the validation split"] = None,
        held_out: Annotated[float, "share held out, without files for validation", Range(above=0, high=0.5)] = 0.1,
    ) -> None:
        self._files = SplitFolders(path, validation, NAMES)
        self._options = [path, validation, held_out]
        self._splits = Splitting(
            self._reader, has_validation=self._files.has_validation, share=held_out, drops_shared=True
        )

    def documents(self, split: Split) -> Iterator[Document]:
        for document in self._splits.documents(split):
            # In training, one answer counts, and no texts are compared: their numbers are as many as the words.
            yield document._replace(labels=document.labels[:2]) if split == "train" else document

    def fingerprint(self) -> str:
        return self._splits.fingerprint()

    def quick_fingerprint(self) -> str | None:
        file_sets = (self._reader(split, Counter()).files for split in SPLITS)
        return preview([*self._options, str(Path.cwd())], (path for files in file_sets for path in files.paths()))

    def skipped_inputs(self) -> dict[str, int]:
        return self._splits.skipped_inputs()

    def _reader(self, split: Split, dropped: Counter[str]) -> _Reader:
        files = FileSet("corpus.path" if split == "train" else "corpus.validation", (), (".json",), [], dropped)
        return _Reader(files._replace(patterns=self._files.patterns(split, files)))
