"""What the tasks share: draws that are the same everywhere, and which examples are held out."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Annotated, Final, NamedTuple, TypeAlias, TypeVar, final

from paribus import DataError, Document, Problem, Range, Split, Traits

Examples: TypeAlias = Annotated[int, "examples of the training split", Range(1, 10_000_000)]
HeldOut: TypeAlias = Annotated[int, "examples of the validation split", Range(1, 1_000_000)]
Seed: TypeAlias = Annotated[int, "what all examples are drawn from", Range(0)]

PROBE: Final[Traits] = {"provides": ["documents", "pairs", "longer"]}
END: Final = ">"  # of a question: what follows is the answer
SHARE: Final = 8  # of all questions that there are, one in so many is of the validation split
PATIENCE: Final = 4096  # draws in which there is one of a split, wherever there are both

T = TypeVar("T")


class Asked(NamedTuple):
    """One example: a question and its answer, in symbols between spaces."""

    question: str
    answer: tuple[str, ...]
    counts: tuple[float, ...] = ()  # of each part of the answer, whether it is asked for or given; (): all are asked


Task = Callable[["Luck", int], Asked]  # an example that is so many times as long as those of the splits


@final
class Luck:
    """Whole numbers that follow from a key, on every machine and in every version of Python."""

    def __init__(self, key: str) -> None:
        self._key = key
        self._blocks = 0
        self._left: list[int] = []

    def below(self, high: int) -> int:
        """One of 0 … high - 1, all as likely, but for less than high in 2^64."""
        if not self._left:
            bits = hashlib.shake_256(f"{self._key} {self._blocks}".encode()).digest(8 * 64)
            self._left = [int.from_bytes(bits[at : at + 8], "little") for at in range(0, len(bits), 8)]
            self._blocks += 1
        return self._left.pop() % high

    def among(self, first: int, last: int) -> int:
        """One of first … last."""
        return first + self.below(last - first + 1)

    def one(self, of: Sequence[T]) -> T:
        return of[self.below(len(of))]

    def some(self, of: Sequence[T], count: int) -> list[T]:
        """So many different ones, in any order."""
        left = list(of)
        for place in range(count):
            other = self.among(place, len(left) - 1)
            left[place], left[other] = left[other], left[place]
        return left[:count]

    def size(self, most: int, times: int, least: int = 1) -> int:
        """How long an example is: up to `most`, or as many times that, and longer than one of a time less."""
        return self.among(max(least, (times - 1) * most + 1), max(least, times * most))


@final
class Drawn:
    """The examples of a task: number i of a split is a function of the seed, the split and i.

    To which split a question belongs its hash says, so that none is in both; a longer one is in neither.
    """

    def __init__(self, task: Task, examples: int, held_out: int, seed: int, file: str, *options: object) -> None:
        self._task = task
        self._counts = {"train": examples, "val": held_out}
        self._seed = seed
        self._said = (Path(file).stem, *options)
        self._file = file

    def documents(self, split: Split) -> Iterator[Document]:
        for number in range(self._counts[split]):
            name = f"{split} {number}"
            yield _document(name, self._of(split, Luck(f"{self._seed} {self._said} {name}")))

    def longer(self, times: int) -> Iterator[Document]:
        """As many as the validation split has."""
        for number in range(self._counts["val"]):
            name = f"{times} times as long, {number}"
            yield _document(name, self._task(Luck(f"{self._seed} {self._said} {name}"), times))

    def fingerprint(self) -> str:
        """Of the options and of the code that draws."""
        code = [Path(file).read_text(encoding="utf-8") for file in (self._file, __file__)]
        parts = [repr((self._said, *self._counts.values(), self._seed)), *code]
        return hashlib.sha256("\0".join(parts).encode()).hexdigest()

    def _of(self, split: Split, luck: Luck) -> Asked:
        for _ in range(PATIENCE):
            asked = self._task(luck, 1)
            if (_hash(asked.question) % SHARE == 0) == (split == "val"):
                return asked
        what = f"the corpus has too few different questions to hold out one in {SHARE} for the split `{split}`"
        raise DataError(
            Problem(code="too-few-documents", path="corpus", message=what, valid="longer ones, of more symbols")
        )


def letters(count: int, *, capital: bool = False) -> tuple[str, ...]:
    """So many symbols: a … z, and then pairs of letters."""
    alphabet = "abcdefghijklmnopqrstuvwxyz"
    found = [*alphabet, *(one + two for one in alphabet for two in alphabet)][:count]
    return tuple(symbol.upper() if capital else symbol for symbol in found)


MOST: Final = 26 + 26**2  # symbols that `letters` has


def _document(name: str, asked: Asked) -> Document:
    return Document(name, (asked.question,), asked.answer, labels=asked.counts)


def _hash(text: str) -> int:
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "little")
