"""Write a sequence in order."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, ClassVar, final

from paribus import Corpus, Document, Range, Split, Traits
from paribus_probe.drawing import END, PROBE, Asked, Drawn, Examples, HeldOut, Luck, Seed


@final
class Sort(Corpus):
    """Random numbers, and the same from the smallest to the largest, each as often as it was there.

    `7 2 7 4 >` is asked and `2 4 7 7` the answer: "Order Matters: Sequence to Sequence for Sets" (Vinyals et al. 2015).
    Sequences are of 1 up to `length` numbers; the longer ones have up to so many times as many, and more than those of
    a time less.
    """

    traits: ClassVar[Traits] = PROBE

    def __init__(
        self,
        *,
        length: Annotated[int, "numbers of a sequence, at most", Range(2, 65_536)] = 16,
        numbers: Annotated[int, "different numbers", Range(2, 10_000)] = 16,
        examples: Examples = 8192,
        held_out: HeldOut = 512,
        seed: Seed = 0,
    ) -> None:
        self._length = length
        self._numbers = numbers
        self._drawn = Drawn(self._ask, examples, held_out, seed, __file__, length, numbers)

    def documents(self, split: Split) -> Iterator[Document]:
        return self._drawn.documents(split)

    def longer_documents(self, times: int) -> Iterator[Document]:
        return self._drawn.longer(times)

    def fingerprint(self) -> str:
        return self._drawn.fingerprint()

    def _ask(self, luck: Luck, times: int) -> Asked:
        numbers = [luck.below(self._numbers) for _ in range(luck.size(self._length, times))]
        return Asked(" ".join([*map(str, numbers), END]), (" ".join(map(str, sorted(numbers))),))
