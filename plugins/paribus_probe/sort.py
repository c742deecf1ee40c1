"""Sorting task."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, ClassVar, final

from paribus import Corpus, CorpusTraits, Document, Range, Split
from paribus_probe.task_examples import END, PROBE, Examples, HeldOut, KeyedRandom, Question, Seed, TaskExamples


@final
class Sort(Corpus):
    """Sorting task: random numbers, and the same numbers in ascending order. "Order Matters: Sequence to Sequence for
    Sets" (Vinyals et al. 2015).

    The answer to `7 2 7 4 >` is `2 4 7 7`. Sequences have 1 to `length` numbers; n times longer ones have more than
    n - 1 and up to n times `length`.
    """

    traits: ClassVar[CorpusTraits] = PROBE

    def __init__(
        self,
        *,
        length: Annotated[int, "maximum length of a sequence", Range(2, 65_536)] = 16,
        numbers: Annotated[int, "different numbers", Range(2, 10_000)] = 16,
        examples: Examples = 8192,
        held_out: HeldOut = 512,
        seed: Seed = 0,
    ) -> None:
        self._length = length
        self._numbers = numbers
        self._examples = TaskExamples(self._question, examples, held_out, seed, __file__, length, numbers)

    def documents(self, split: Split) -> Iterator[Document]:
        return self._examples.documents(split)

    def longer_documents(self, times: int) -> Iterator[Document]:
        return self._examples.longer_documents(times)

    def fingerprint(self) -> str:
        return self._examples.fingerprint()

    def _question(self, rng: KeyedRandom, times: int) -> Question:
        numbers = [rng.below(self._numbers) for _ in range(rng.size(self._length, times))]
        return Question(" ".join([*map(str, numbers), END]), (" ".join(map(str, sorted(numbers))),))
