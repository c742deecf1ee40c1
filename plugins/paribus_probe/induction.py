"""Induction task."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, ClassVar, final

from paribus import Corpus, CorpusTraits, Document, Range, Split
from paribus_probe.task_examples import (
    MAX_SYMBOLS,
    PROBE,
    Examples,
    HeldOut,
    KeyedRandom,
    Question,
    Seed,
    TaskExamples,
    letters,
)


@final
class Induction(Corpus):
    """Induction: random symbols, the last of which occurred once before; the answer is its successor there.
    "In-context Learning and Induction Heads" (Olsson et al. 2022).

    The answer to `c a d b a` is `d`. The query has no mark: it is the last symbol, after up to `length` symbols.
    """

    traits: ClassVar[CorpusTraits] = PROBE

    def __init__(
        self,
        *,
        length: Annotated[int, "maximum number of symbols before the last", Range(2, 65_536)] = 32,
        symbols: Annotated[int, "different symbols", Range(3, MAX_SYMBOLS)] = 16,
        examples: Examples = 8192,
        held_out: HeldOut = 512,
        seed: Seed = 0,
    ) -> None:
        self._length = length
        self._symbols = letters(symbols)
        self._examples = TaskExamples(self._question, examples, held_out, seed, __file__, length, symbols)

    def documents(self, split: Split) -> Iterator[Document]:
        return self._examples.documents(split)

    def longer_documents(self, times: int) -> Iterator[Document]:
        return self._examples.longer_documents(times)

    def fingerprint(self) -> str:
        return self._examples.fingerprint()

    def _question(self, rng: KeyedRandom, times: int) -> Question:
        length = rng.size(self._length, times, minimum=2)
        query = rng.below(len(self._symbols))
        others = self._symbols[:query] + self._symbols[query + 1 :]
        text = [rng.choice(others) for _ in range(length)]
        position = rng.below(length - 1)
        text[position] = self._symbols[query]
        return Question(" ".join([*text, self._symbols[query]]), (text[position + 1],))
