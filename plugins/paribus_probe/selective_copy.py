"""Selective copying task."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, ClassVar, final

from paribus import Corpus, CorpusTraits, Document, Range, Split
from paribus_probe.task_examples import (
    END,
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

BLANK = "."


@final
class SelectiveCopy(Corpus):
    """Selective copying: symbols scattered over blanks, and the symbols alone. "Mamba: Linear-Time Sequence
    Modeling with Selective State Spaces" (Gu & Dao 2023), after "Unitary Evolution Recurrent Neural Networks" (Arjovsky
    et al. 2016).

    The answer to `. b . . a . >` is `b a`. The positions of the symbols are random, so a model must select by content.
    Longer questions have more blanks, and as many symbols.
    """

    traits: ClassVar[CorpusTraits] = PROBE

    def __init__(
        self,
        *,
        length: Annotated[int, "maximum number of symbols and blanks", Range(4, 65_536)] = 32,
        copy_count: Annotated[int, "number of symbols to copy", Range(1, 4096)] = 4,
        symbols: Annotated[int, "different symbols", Range(2, MAX_SYMBOLS)] = 16,
        examples: Examples = 8192,
        held_out: HeldOut = 512,
        seed: Seed = 0,
    ) -> None:
        self._length = length
        self._copy_count = min(copy_count, length)
        self._symbols = letters(symbols)
        self._examples = TaskExamples(self._question, examples, held_out, seed, __file__, length, copy_count, symbols)

    def documents(self, split: Split) -> Iterator[Document]:
        return self._examples.documents(split)

    def longer_documents(self, times: int) -> Iterator[Document]:
        return self._examples.longer_documents(times)

    def fingerprint(self) -> str:
        return self._examples.fingerprint()

    def _question(self, rng: KeyedRandom, times: int) -> Question:
        length = rng.size(self._length, times, minimum=self._copy_count)
        text = [BLANK] * length
        copied = [rng.choice(self._symbols) for _ in range(self._copy_count)]
        for position, symbol in zip(sorted(rng.sample(range(length), self._copy_count)), copied, strict=True):
            text[position] = symbol
        return Question(" ".join([*text, END]), (" ".join(copied),))
