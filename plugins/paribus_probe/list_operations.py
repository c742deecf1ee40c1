"""List operations task (ListOps)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Annotated, ClassVar, Final, final

from paribus import Corpus, CorpusTraits, Document, Range, Split
from paribus_probe.task_examples import END, PROBE, Examples, HeldOut, KeyedRandom, Question, Seed, TaskExamples

OPERATIONS: Final[Mapping[str, Callable[[list[int]], int]]] = {
    "MAX": lambda values: values[-1],
    "MIN": lambda values: values[0],
    "MED": lambda values: values[(len(values) - 1) // 2],
    "SM": lambda values: sum(values) % 10,
}
"""Operations on sorted values."""


@final
class ListOperations(Corpus):
    """Nested operations on lists of digits, and the resulting digit: "ListOps: A Diagnostic Dataset for Latent
    Tree Learning" (Nangia & Bowman 2018).

    The answer to `[MAX 2 9 [MIN 4 7 ] 0 ] >` is `9`. The operations are MAX, MIN, MED (the lower median) and SM, the
    sum modulo 10.
    """

    traits: ClassVar[CorpusTraits] = PROBE

    def __init__(
        self,
        *,
        length: Annotated[int, "maximum number of symbols of an expression", Range(4, 65_536)] = 32,
        arguments: Annotated[int, "maximum number of arguments of an operation", Range(2, 100)] = 5,
        examples: Examples = 8192,
        held_out: HeldOut = 512,
        seed: Seed = 0,
    ) -> None:
        self._length = length
        self._arguments = arguments
        self._examples = TaskExamples(self._question, examples, held_out, seed, __file__, length, arguments)

    def documents(self, split: Split) -> Iterator[Document]:
        return self._examples.documents(split)

    def longer_documents(self, times: int) -> Iterator[Document]:
        return self._examples.longer_documents(times)

    def fingerprint(self) -> str:
        return self._examples.fingerprint()

    def _question(self, rng: KeyedRandom, times: int) -> Question:
        text, value = self._expression(rng, rng.size(self._length, times, minimum=4))
        return Question(" ".join([*text, END]), (str(value),))

    def _expression(self, rng: KeyedRandom, room: int) -> tuple[list[str], int]:
        """Return an expression of at most `room` symbols, two of which are an operation and its end, and its value."""
        if room < 4:
            digit = rng.below(10)
            return [str(digit)], digit
        count = rng.between(2, min(self._arguments, room - 2))
        cuts = sorted(rng.sample(range(1, room - 2), count - 1))
        rooms = [end - start for start, end in zip([0, *cuts], [*cuts, room - 2], strict=True)]
        parts = [self._expression(rng, part_room) for part_room in rooms]
        name = rng.choice(tuple(OPERATIONS))
        text = [symbol for part, _ in parts for symbol in part]
        return [f"[{name}", *text, "]"], OPERATIONS[name](sorted(value for _, value in parts))
