"""Addition of numbers with several digits."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, ClassVar, final

from paribus import Corpus, CorpusTraits, Document, Range, Split
from paribus_probe.task_examples import PROBE, Examples, HeldOut, KeyedRandom, Question, Seed, TaskExamples


@final
class Addition(Corpus):
    """Addition, digit by digit: "Teaching Arithmetic to Small Transformers" (Lee et al. 2023).

    The answer to `0 3 5 + 4 7 7 =` is `0 5 1 2`: both numbers have as many digits, and their sum one more. With
    `reversed`, each number starts with its last digit, `5 3 0 + 7 7 4 =` and `2 1 5 0`, so that a digit depends on
    those before it only. Longer questions have more digits.
    """

    traits: ClassVar[CorpusTraits] = PROBE

    def __init__(
        self,
        *,
        digits: Annotated[int, "maximum number of digits", Range(1, 4096)] = 3,
        reversed: Annotated[bool, "write each number from its last digit to its first"] = True,
        examples: Examples = 8192,
        held_out: HeldOut = 512,
        seed: Seed = 0,
    ) -> None:
        self._digits = digits
        self._step = -1 if reversed else 1
        self._examples = TaskExamples(self._question, examples, held_out, seed, __file__, digits, reversed)

    def documents(self, split: Split) -> Iterator[Document]:
        return self._examples.documents(split)

    def longer_documents(self, times: int) -> Iterator[Document]:
        return self._examples.longer_documents(times)

    def fingerprint(self) -> str:
        return self._examples.fingerprint()

    def _question(self, rng: KeyedRandom, times: int) -> Question:
        digits = rng.size(self._digits, times)
        left, right = (int("".join(str(rng.below(10)) for _ in range(digits))) for _ in range(2))
        text = f"{self._written(left, digits)} + {self._written(right, digits)} ="
        return Question(text, (self._written(left + right, digits + 1),))

    def _written(self, number: int, digits: int) -> str:
        return " ".join(f"{number:0{digits}}"[:: self._step])
