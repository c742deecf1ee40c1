"""Text-to-text corpus: the labels of another corpus as target texts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, ClassVar, Final, final

from paribus import Corpus, CorpusTraits, Document, Range, Slot, Split, join_names
from paribus_text.holdout import digest

LABELLED: Final = ("labels", "scores", "tags", "answers")
UNANSWERED: Final = "unanswerable"


@final
class TextToText(Corpus):
    """Documents of another corpus with their labels as text: "Exploring the Limits of Transfer Learning" (Raffel et al.
    2020).

    A text is `task sentence: …`, a pair `task sentence1: … sentence2: …`, a question `task question: … context: …`. A
    class or tag is written as its name, a score rounded to a step, and an answer as its words.
    """

    traits: ClassVar[CorpusTraits] = {"provides": ["documents", "pairs"]}

    def __init__(
        self,
        *,
        source: Annotated[Callable[[], Corpus], "corpus whose labels are written", Slot("corpus")] = "word-order",  # type: ignore[assignment]  # a name in the spec, its factory here
        task: Annotated[str, "prefix of the text, which names the task"] = "",
        step: Annotated[
            float, "step to which scores are rounded (T5 on STS-B, from 0 to 5: 0.2)", Range(above=0)
        ] = 0.2,
    ) -> None:
        self._source = source()
        self._label_kind = next((kind for kind in LABELLED if kind in self._source.traits.get("provides", [])), "")
        if not self._label_kind or self._source.traits.get("modality", "text") != "text":
            raise ValueError(f"expected as `source` a corpus of texts with {join_names(LABELLED)}")
        self._task = task.strip()
        self._step = step
        self._dropped: Counter[str] = Counter()

    def documents(self, split: Split) -> Iterator[Document]:
        self._dropped.clear()
        for document in self._source.documents(split):
            target = self._target(document)
            if target:
                yield Document(document.name, (self._input(document),), (target,), document.language)
            else:
                self._dropped["documents of a class without a name"] += 1

    def fingerprint(self) -> str:
        code = Path(__file__).read_text(encoding="utf-8")
        return digest([self._source.fingerprint(), self._task, str(self._step), code])

    def skipped_inputs(self) -> dict[str, int]:
        return {**self._source.skipped_inputs(), **self._dropped}

    def _input(self, document: Document) -> str:
        text, second = document.text, " ".join(document.target)
        if self._label_kind == "answers":
            parts = f"question: {text} context: {second}"
        elif second:
            parts = f"sentence1: {text} sentence2: {second}"
        else:
            parts = f"sentence: {text}"
        return f"{self._task} {parts}".strip()

    def _target(self, document: Document) -> str:
        labels = document.labels
        if self._label_kind == "answers":
            first, last = (int(label) for label in labels[:2])  # of the answer that is trained on
            return " ".join(document.target[first : last + 1]) if first >= 0 else UNANSWERED
        if self._label_kind == "scores":
            return f"{round(labels[0] / self._step) * self._step:.{_digits(self._step)}f}"
        names = self._source.classes()
        words = [names[int(label)] if 0 <= label < len(names) else "" for label in labels]
        return " ".join(words) if names and all(words) else ""


def _digits(step: float) -> int:
    """Return the number of decimal places of a step."""
    return len(f"{step:g}".partition(".")[2])
