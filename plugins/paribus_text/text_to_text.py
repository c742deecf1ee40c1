"""Another corpus' labels as texts to be written."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, ClassVar, Final, final

from paribus import Corpus, Document, Range, Slot, Split, Traits, join_names
from paribus_text.holding import digest

LABELLED: Final = ("labels", "scores", "tags", "answers")
UNANSWERED: Final = "unanswerable"


@final
class TextToText(Corpus):
    """The documents of another corpus, and in words what it tells of them: "Exploring the Limits of Transfer Learning"
    (Raffel et al. 2020).

    A text is `task sentence: …`, a pair `task sentence1: … sentence2: …`, a question `task question: … context: …`. A
    class is written by its name, tags by theirs, a score to the nearest step, an answer as it stands.
    """

    traits: ClassVar[Traits] = {"provides": ["documents", "pairs"]}

    def __init__(
        self,
        *,
        of: Annotated[Callable[[], Corpus], "the corpus whose labels are written", Slot("corpus")] = "word-order",  # type: ignore[assignment]  # a name in the spec, its factory here
        task: Annotated[str, "what the text begins with, so that tasks are told apart"] = "",
        step: Annotated[
            float, "to which step scores are rounded (T5 on STS-B, from 0 to 5: 0.2)", Range(above=0)
        ] = 0.2,
    ) -> None:
        self._of = of()
        self._told = next((kind for kind in LABELLED if kind in self._of.traits.get("provides", [])), "")
        if not self._told or self._of.traits.get("modality", "text") != "text":
            raise ValueError(f"the corpus `of` must be one of texts with {join_names(LABELLED)}")
        self._task = task.strip()
        self._step = step
        self._dropped: Counter[str] = Counter()

    def documents(self, split: Split) -> Iterator[Document]:
        self._dropped.clear()
        for document in self._of.documents(split):
            target = self._written(document)
            if target:
                yield Document(document.name, (self._asked(document),), (target,), document.language)
            else:
                self._dropped["documents of a class without a name"] += 1

    def fingerprint(self) -> str:
        code = Path(__file__).read_text(encoding="utf-8")
        return digest([self._of.fingerprint(), self._task, str(self._step), code])

    def skipped_inputs(self) -> dict[str, int]:
        return {**self._of.skipped_inputs(), **self._dropped}

    def _asked(self, document: Document) -> str:
        text, other = document.text, " ".join(document.target)
        if self._told == "answers":
            parts = f"question: {text} context: {other}"
        elif other:
            parts = f"sentence1: {text} sentence2: {other}"
        else:
            parts = f"sentence: {text}"
        return f"{self._task} {parts}".strip()

    def _written(self, document: Document) -> str:
        labels = document.labels
        if self._told == "answers":
            first, last = (int(label) for label in labels)
            return " ".join(document.target[first : last + 1]) if first >= 0 else UNANSWERED
        if self._told == "scores":
            return f"{round(labels[0] / self._step) * self._step:.{_digits(self._step)}f}"
        names = self._of.classes()
        known = [names[int(label)] if 0 <= label < len(names) else "" for label in labels]
        return " ".join(known) if names and all(known) else ""


def _digits(step: float) -> int:
    """So many digits behind the point as a step of this size needs."""
    return len(f"{step:g}".partition(".")[2])
