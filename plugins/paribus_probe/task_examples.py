"""Shared parts of probes: keyed random numbers, generated examples, and the split into training and validation."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Annotated, Final, NamedTuple, TypeAlias, TypeVar, final

from paribus import CorpusTraits, DataError, Document, Problem, Range, Split, code_fingerprint

Examples: TypeAlias = Annotated[int, "examples of the training split", Range(1, 10_000_000)]
HeldOut: TypeAlias = Annotated[int, "examples of the validation split", Range(1, 1_000_000)]
Seed: TypeAlias = Annotated[int, "seed of all examples", Range(0)]

PROBE: Final[CorpusTraits] = {"provides": ["documents", "pairs", "longer"]}
END: Final = ">"  # of a question, before its answer
HELD_OUT_DIVISOR: Final = 8  # one in eight of all questions is in the validation split
ATTEMPTS: Final = 4096  # draws until a question of the requested split

T = TypeVar("T")


class Question(NamedTuple):
    """One example: a question and its answer, in symbols separated by spaces."""

    question: str
    answer: tuple[str, ...]
    is_predicted: tuple[float, ...] = ()  # 1 or 0 for each part of the answer; (): all are predicted


Task = Callable[["KeyedRandom", int], Question]  # the integer is the length as a multiple of that of the splits


@final
class KeyedRandom:
    """Random integers that depend on a key only, the same on every machine and in every version of Python."""

    def __init__(self, key: str) -> None:
        self._key = key
        self._blocks = 0
        self._buffer: list[int] = []

    def below(self, high: int) -> int:
        """Return an integer in [0, high), uniform up to a bias of less than high / 2^64."""
        if not self._buffer:
            bits = hashlib.shake_256(f"{self._key} {self._blocks}".encode()).digest(8 * 64)
            self._buffer = [int.from_bytes(bits[start : start + 8], "little") for start in range(0, len(bits), 8)]
            self._blocks += 1
        return self._buffer.pop() % high

    def between(self, low: int, high: int) -> int:
        """Return an integer in [low, high]."""
        return low + self.below(high - low + 1)

    def choice(self, items: Sequence[T]) -> T:
        return items[self.below(len(items))]

    def sample(self, items: Sequence[T], count: int) -> list[T]:
        """Return `count` distinct items in random order."""
        pool = list(items)
        for index in range(count):
            other = self.between(index, len(pool) - 1)
            pool[index], pool[other] = pool[other], pool[index]
        return pool[:count]

    def size(self, limit: int, times: int, minimum: int = 1) -> int:
        """Return a length up to `times` the limit, and above that of one time less."""
        return self.between(max(minimum, (times - 1) * limit + 1), max(minimum, times * limit))


@final
class TaskExamples:
    """Examples of a task: example i of a split depends on the seed, the split and i only.

    The hash of a question decides its split, so none is in both; longer questions are in neither.
    """

    def __init__(self, task: Task, examples: int, held_out: int, seed: int, file: str, *options: object) -> None:
        self._task = task
        self._counts = {"train": examples, "val": held_out}
        self._seed = seed
        self._key = (Path(file).stem, *options)
        self._file = file

    def documents(self, split: Split) -> Iterator[Document]:
        for number in range(self._counts[split]):
            name = f"{split} {number}"
            yield _document(name, self._draw(split, KeyedRandom(f"{self._seed} {self._key} {name}")))

    def longer_documents(self, times: int) -> Iterator[Document]:
        """Yield as many longer documents as the validation split has."""
        for number in range(self._counts["val"]):
            name = f"{times} times as long, {number}"
            yield _document(name, self._task(KeyedRandom(f"{self._seed} {self._key} {name}"), times))

    def fingerprint(self) -> str:
        """Return a hash of the options and of the code that draws."""
        code = code_fingerprint(self._file, __file__)
        parts = [repr((self._key, *self._counts.values(), self._seed)), *code]
        return hashlib.sha256("\0".join(parts).encode()).hexdigest()

    def _draw(self, split: Split, rng: KeyedRandom) -> Question:
        for _ in range(ATTEMPTS):
            question = self._task(rng, 1)
            if (_hash(question.question) % HELD_OUT_DIVISOR == 0) == (split == "val"):
                return question
        message = f"too few distinct questions to hold out one in {HELD_OUT_DIVISOR}; none for the split `{split}`"
        valid = "longer questions, with more symbols"
        raise DataError(Problem(code="too-few-documents", path="corpus", message=message, valid=valid))


def letters(count: int, *, capital: bool = False) -> tuple[str, ...]:
    """Return `count` symbols: a … z, then pairs of letters."""
    alphabet = "abcdefghijklmnopqrstuvwxyz"
    symbols = [*alphabet, *(first + second for first in alphabet for second in alphabet)][:count]
    return tuple(symbol.upper() if capital else symbol for symbol in symbols)


MAX_SYMBOLS: Final = 26 + 26**2  # of `letters`


def _document(name: str, question: Question) -> Document:
    return Document(name, (question.question,), question.answer, labels=question.is_predicted)


def _hash(text: str) -> int:
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "little")
