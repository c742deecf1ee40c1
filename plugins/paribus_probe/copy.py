"""Write a sequence again."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, ClassVar, final

from paribus import Corpus, Document, Range, Split, Traits
from paribus_probe.drawing import END, MOST, PROBE, Asked, Drawn, Examples, HeldOut, Luck, Seed, letters


@final
class Copy(Corpus):
    """Random symbols, and the same symbols again: "Neural Turing Machines" (Graves et al. 2014).

    `b a d >` is asked and `b a d` the answer. Sequences are of 1 up to `length` symbols; the longer ones have up to so
    many times as many, and more than those of a time less.
    """

    traits: ClassVar[Traits] = PROBE

    def __init__(
        self,
        *,
        length: Annotated[int, "symbols of a sequence, at most", Range(2, 65_536)] = 16,
        symbols: Annotated[int, "different symbols", Range(2, MOST)] = 16,
        examples: Examples = 8192,
        held_out: HeldOut = 512,
        seed: Seed = 0,
    ) -> None:
        self._length = length
        self._symbols = letters(symbols)
        self._drawn = Drawn(self._ask, examples, held_out, seed, __file__, length, symbols)

    def documents(self, split: Split) -> Iterator[Document]:
        return self._drawn.documents(split)

    def longer_documents(self, times: int) -> Iterator[Document]:
        return self._drawn.longer(times)

    def fingerprint(self) -> str:
        return self._drawn.fingerprint()

    def _ask(self, luck: Luck, times: int) -> Asked:
        text = " ".join(luck.one(self._symbols) for _ in range(luck.size(self._length, times)))
        return Asked(f"{text} {END}", (text,))
