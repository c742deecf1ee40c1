"""Say what nested operations on lists come to."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Annotated, ClassVar, Final, final

from paribus import Corpus, Document, Range, Split, Traits
from paribus_probe.drawing import END, PROBE, Asked, Drawn, Examples, HeldOut, Luck, Seed

OPERATIONS: Final[Mapping[str, Callable[[list[int]], int]]] = {
    "MAX": lambda values: values[-1],
    "MIN": lambda values: values[0],
    "MED": lambda values: values[(len(values) - 1) // 2],
    "SM": lambda values: sum(values) % 10,
}
"""Each of values in order."""


@final
class ListOperations(Corpus):
    """Nested operations on lists of digits, and the digit that they come to: "ListOps: A Diagnostic Dataset for Latent
    Tree Learning" (Nangia & Bowman 2018).

    `[MAX 2 9 [MIN 4 7 ] 0 ] >` asks for `9`. There are MAX, MIN, MED (of an even number of them the lower one in the
    middle) and SM, the sum modulo 10.
    """

    traits: ClassVar[Traits] = PROBE

    def __init__(
        self,
        *,
        length: Annotated[int, "symbols of an expression, at most", Range(4, 65_536)] = 32,
        arguments: Annotated[int, "arguments of an operation, at most", Range(2, 100)] = 5,
        examples: Examples = 8192,
        held_out: HeldOut = 512,
        seed: Seed = 0,
    ) -> None:
        self._length = length
        self._arguments = arguments
        self._drawn = Drawn(self._ask, examples, held_out, seed, __file__, length, arguments)

    def documents(self, split: Split) -> Iterator[Document]:
        return self._drawn.documents(split)

    def longer_documents(self, times: int) -> Iterator[Document]:
        return self._drawn.longer(times)

    def fingerprint(self) -> str:
        return self._drawn.fingerprint()

    def _ask(self, luck: Luck, times: int) -> Asked:
        text, value = self._grown(luck, luck.size(self._length, times, least=4))
        return Asked(" ".join([*text, END]), (str(value),))

    def _grown(self, luck: Luck, room: int) -> tuple[list[str], int]:
        """An expression of at most `room` symbols, and its value: an operation and its end take two of them."""
        if room < 4:
            digit = luck.below(10)
            return [str(digit)], digit
        count = luck.among(2, min(self._arguments, room - 2))
        cuts = sorted(luck.some(range(1, room - 2), count - 1))
        rooms = [end - start for start, end in zip([0, *cuts], [*cuts, room - 2], strict=True)]
        parts = [self._grown(luck, each) for each in rooms]
        name = luck.one(tuple(OPERATIONS))
        text = [symbol for part, _ in parts for symbol in part]
        return [f"[{name}", *text, "]"], OPERATIONS[name](sorted(value for _, value in parts))
