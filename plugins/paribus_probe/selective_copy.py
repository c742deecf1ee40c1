"""Write the symbols that stand among blanks."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, ClassVar, final

from paribus import Corpus, Document, Range, Split, Traits
from paribus_probe.drawing import END, MOST, PROBE, Asked, Drawn, Examples, HeldOut, Luck, Seed, letters

BLANK = "."


@final
class SelectiveCopy(Corpus):
    """Symbols scattered over blanks, and the symbols alone: "Mamba: Linear-Time Sequence Modeling with Selective State
    Spaces" (Gu & Dao 2023), after "Unitary Evolution Recurrent Neural Networks" (Arjovsky et al. 2016).

    `. b . . a . >` is asked and `b a` the answer. Where symbols stand is drawn anew each time, so that what to keep
    follows from what is read. Longer ones have more blanks, and as many symbols.
    """

    traits: ClassVar[Traits] = PROBE

    def __init__(
        self,
        *,
        length: Annotated[int, "symbols and blanks, at most", Range(4, 65_536)] = 32,
        kept: Annotated[int, "symbols among them", Range(1, 4096)] = 4,
        symbols: Annotated[int, "different symbols", Range(2, MOST)] = 16,
        examples: Examples = 8192,
        held_out: HeldOut = 512,
        seed: Seed = 0,
    ) -> None:
        self._length = length
        self._kept = min(kept, length)
        self._symbols = letters(symbols)
        self._drawn = Drawn(self._ask, examples, held_out, seed, __file__, length, kept, symbols)

    def documents(self, split: Split) -> Iterator[Document]:
        return self._drawn.documents(split)

    def longer_documents(self, times: int) -> Iterator[Document]:
        return self._drawn.longer(times)

    def fingerprint(self) -> str:
        return self._drawn.fingerprint()

    def _ask(self, luck: Luck, times: int) -> Asked:
        length = luck.size(self._length, times, least=self._kept)
        text = [BLANK] * length
        kept = [luck.one(self._symbols) for _ in range(self._kept)]
        for place, symbol in zip(sorted(luck.some(range(length), self._kept)), kept, strict=True):
            text[place] = symbol
        return Asked(" ".join([*text, END]), (" ".join(kept),))
