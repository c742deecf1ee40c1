"""Add modulo a prime."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, ClassVar, final

from paribus import Corpus, Document, Range, Split, Traits
from paribus_probe.drawing import PROBE, Asked, Drawn, Examples, HeldOut, Luck, Seed


@final
class ModularAddition(Corpus):
    """Sums modulo a number: "Grokking: Generalization Beyond Overfitting on Small Algorithmic Datasets" (Power et al.
    2022).

    `17 + 20 =` asks for `6` modulo 31. One in eight of all sums is held out; longer ones have more terms.
    """

    traits: ClassVar[Traits] = PROBE

    def __init__(
        self,
        *,
        modulus: Annotated[int, "what sums are taken modulo", Range(3, 100_000)] = 31,
        terms: Annotated[int, "numbers that are added", Range(2, 4096)] = 2,
        examples: Examples = 8192,
        held_out: HeldOut = 512,
        seed: Seed = 0,
    ) -> None:
        self._modulus = modulus
        self._terms = terms
        self._drawn = Drawn(self._ask, examples, held_out, seed, __file__, modulus, terms)

    def documents(self, split: Split) -> Iterator[Document]:
        return self._drawn.documents(split)

    def longer_documents(self, times: int) -> Iterator[Document]:
        return self._drawn.longer(times)

    def fingerprint(self) -> str:
        return self._drawn.fingerprint()

    def _ask(self, luck: Luck, times: int) -> Asked:
        terms = [luck.below(self._modulus) for _ in range(times * self._terms)]
        return Asked(" + ".join(map(str, terms)) + " =", (str(sum(terms) % self._modulus),))
