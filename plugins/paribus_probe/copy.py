"""Copy task."""

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


@final
class Copy(Corpus):
    """Copy task: random symbols, and the same symbols again. "Neural Turing Machines" (Graves et al. 2014).

    The answer to `b a d >` is `b a d`. Sequences have 1 to `length` symbols; n times longer ones have more than n - 1
    and up to n times `length`.
    """

    traits: ClassVar[CorpusTraits] = PROBE

    def __init__(
        self,
        *,
        length: Annotated[int, "maximum length of a sequence", Range(2, 65_536)] = 16,
        symbols: Annotated[int, "different symbols", Range(2, MAX_SYMBOLS)] = 16,
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
        text = " ".join(rng.choice(self._symbols) for _ in range(rng.size(self._length, times)))
        return Question(f"{text} {END}", (text,))
