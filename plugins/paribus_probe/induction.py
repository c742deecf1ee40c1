"""Say what came after a symbol when it came before."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, ClassVar, final

from paribus import Corpus, Document, Range, Split, Traits
from paribus_probe.drawing import MOST, PROBE, Asked, Drawn, Examples, HeldOut, Luck, Seed, letters


@final
class Induction(Corpus):
    """Random symbols of which the last came once before; the answer is what followed it there: "In-context Learning and
    Induction Heads" (Olsson et al. 2022).

    `c a d b a` asks for `d`. No mark says which symbol is asked for: it is the last one. `length` is how many symbols
    there are in front of it, at most.
    """

    traits: ClassVar[Traits] = PROBE

    def __init__(
        self,
        *,
        length: Annotated[int, "symbols before the last, at most", Range(2, 65_536)] = 32,
        symbols: Annotated[int, "different symbols", Range(3, MOST)] = 16,
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
        length = luck.size(self._length, times, least=2)
        asked = luck.below(len(self._symbols))
        others = self._symbols[:asked] + self._symbols[asked + 1 :]
        text = [luck.one(others) for _ in range(length)]
        place = luck.below(length - 1)
        text[place] = self._symbols[asked]
        return Asked(" ".join([*text, self._symbols[asked]]), (text[place + 1],))
