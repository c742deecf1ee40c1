"""Group task."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, ClassVar, final

from paribus import Corpus, CorpusTraits, Document, Range, Split
from paribus_probe.task_examples import (
    MAX_SYMBOLS,
    Examples,
    HeldOut,
    KeyedRandom,
    Question,
    Seed,
    TaskExamples,
    letters,
)


@final
class Groups(Corpus):
    """Groups of symbols: the class of a text is the group that its symbols are drawn from.

    With four groups of six symbols, `c a` is of the class `AA`, and `h l` of `BB`. The names mean nothing, so a
    language model can only know them from a prompt: see the corpus `in-context` and the measure `few-shot`.
    """

    traits: ClassVar[CorpusTraits] = {
        "provides": ["documents", "labels", "longer"],
        "document_facts": {"classes": "classes"},
    }

    def __init__(
        self,
        *,
        classes: Annotated[int, "number of groups", Range(2, 26)] = 4,
        symbols: Annotated[int, "symbols of each group", Range(2, MAX_SYMBOLS // 26)] = 6,
        length: Annotated[int, "symbols of a text", Range(2, 65_536)] = 2,
        examples: Examples = 8192,
        held_out: HeldOut = 512,
        seed: Seed = 0,
    ) -> None:
        names = letters(classes * symbols)
        self._groups = [names[start : start + symbols] for start in range(0, len(names), symbols)]
        self._length = length
        self._examples = TaskExamples(self._question, examples, held_out, seed, __file__, classes, symbols, length)

    def documents(self, split: Split) -> Iterator[Document]:
        return self._examples.documents(split)

    def longer_documents(self, times: int) -> Iterator[Document]:
        return self._examples.longer_documents(times)

    def classes(self) -> tuple[str, ...]:
        return tuple(2 * letter for letter in letters(len(self._groups), capital=True))

    def fingerprint(self) -> str:
        return self._examples.fingerprint()

    def _question(self, rng: KeyedRandom, times: int) -> Question:
        group = rng.below(len(self._groups))
        text = " ".join(rng.choice(self._groups[group]) for _ in range(times * self._length))
        return Question(text, (), (float(group),))
