"""Mano, a task of knowledge manipulation."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Annotated, ClassVar, Final, final

from paribus import Corpus, CorpusTraits, Document, Range, Split
from paribus_probe.task_examples import END, PROBE, Examples, HeldOut, KeyedRandom, Question, Seed, TaskExamples

OPERATIONS: Final[Mapping[str, Callable[[int, int], int]]] = {
    "+": lambda left, right: left + right,
    "-": lambda left, right: left - right,
    "*": lambda left, right: left * right,
}


@final
class Mano(Corpus):
    """Mano, modular arithmetic: an expression in prefix notation, and its value. "Physics of Language Models: Part
    4.1" (Allen-Zhu 2025).

    The answer to `* + 3 20 5 >` is `0` modulo 23. The tables of the operations are knowledge, which is kept in the
    weights and used as often as there are operations, without writing values between. Longer questions have more
    operations.
    """

    traits: ClassVar[CorpusTraits] = PROBE

    def __init__(
        self,
        *,
        operations: Annotated[int, "maximum number of operations", Range(1, 4096)] = 3,
        modulus: Annotated[int, "modulus of the values", Range(2, 1000)] = 23,
        examples: Examples = 8192,
        held_out: HeldOut = 512,
        seed: Seed = 0,
    ) -> None:
        self._operations = operations
        self._modulus = modulus
        self._examples = TaskExamples(self._question, examples, held_out, seed, __file__, operations, modulus)

    def documents(self, split: Split) -> Iterator[Document]:
        return self._examples.documents(split)

    def longer_documents(self, times: int) -> Iterator[Document]:
        return self._examples.longer_documents(times)

    def fingerprint(self) -> str:
        return self._examples.fingerprint()

    def _question(self, rng: KeyedRandom, times: int) -> Question:
        text, value = self._expression(rng, rng.size(self._operations, times))
        return Question(" ".join([*text, END]), (str(value),))

    def _expression(self, rng: KeyedRandom, operations: int) -> tuple[list[str], int]:
        """Return the symbols of an expression with this number of operations, and its value."""
        if operations == 0:
            value = rng.below(self._modulus)
            return [str(value)], value
        name = rng.choice(tuple(OPERATIONS))
        on_the_left = rng.below(operations)
        left_text, left = self._expression(rng, on_the_left)
        right_text, right = self._expression(rng, operations - 1 - on_the_left)
        return [name, *left_text, *right_text], OPERATIONS[name](left, right) % self._modulus
