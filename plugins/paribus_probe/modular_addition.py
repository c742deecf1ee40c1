"""Modular addition task."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, ClassVar, final

from paribus import Corpus, CorpusTraits, Document, Range, Split
from paribus_probe.task_examples import PROBE, Examples, HeldOut, KeyedRandom, Question, Seed, TaskExamples


@final
class ModularAddition(Corpus):
    """Modular addition: "Grokking: Generalization Beyond Overfitting on Small Algorithmic Datasets" (Power et al.
    2022).

    The answer to `17 + 20 =` is `6` modulo 31. One in eight of all sums is held out; longer questions have more terms.
    """

    traits: ClassVar[CorpusTraits] = PROBE

    def __init__(
        self,
        *,
        modulus: Annotated[int, "modulus of the sums", Range(3, 100_000)] = 31,
        terms: Annotated[int, "number of terms", Range(2, 4096)] = 2,
        examples: Examples = 8192,
        held_out: HeldOut = 512,
        seed: Seed = 0,
    ) -> None:
        self._modulus = modulus
        self._terms = terms
        self._examples = TaskExamples(self._question, examples, held_out, seed, __file__, modulus, terms)

    def documents(self, split: Split) -> Iterator[Document]:
        return self._examples.documents(split)

    def longer_documents(self, times: int) -> Iterator[Document]:
        return self._examples.longer_documents(times)

    def fingerprint(self) -> str:
        return self._examples.fingerprint()

    def _question(self, rng: KeyedRandom, times: int) -> Question:
        terms = [rng.below(self._modulus) for _ in range(times * self._terms)]
        return Question(" + ".join(map(str, terms)) + " =", (str(sum(terms) % self._modulus),))
