"""Addition task with many digits."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from typing import Annotated, ClassVar, Final, NamedTuple, final

from paribus import Corpus, CorpusTraits, Document, Range, Split, code_fingerprint, hookimpl

HELD_OUT_DIVISOR: Final = 8  # one in eight sums is held out


class Sum(NamedTuple):
    """Two terms of a sum."""

    first: int
    second: int

    @property
    def is_held_out(self) -> bool:
        """Whether a sum is of the validation split; the same in either order."""
        return number_of(f"held out {min(self)} {max(self)}", 4) % HELD_OUT_DIVISOR == 0


@final
class LongAddition(Corpus):
    """Addition of two numbers, digit by digit: "Teaching Arithmetic to Small Transformers" (Lee et al. 2023).

    The answer to `1 2 + 9 =` is `2 1`, or `1 2` if `reversed`. Each term has 1 to `digits` digits; in n times longer
    questions it has more than n - 1 and up to n times `digits`. Question i of a split depends on the seed, the split
    and i only. A sum is held out in both orders of its terms.
    """

    traits: ClassVar[CorpusTraits] = {"provides": ["documents", "pairs", "longer"]}

    def __init__(
        self,
        *,
        digits: Annotated[int, "maximum number of digits of a term", Range(1, 1000)] = 3,
        reversed: Annotated[bool, "write the answer from its last digit to its first"] = False,
        examples: Annotated[int, "examples of the training split", Range(1, 10_000_000)] = 8192,
        held_out: Annotated[int, "examples of the validation split", Range(1, 1_000_000)] = 512,
        seed: Annotated[int, "seed of all examples", Range(0)] = 0,
    ) -> None:
        self._digits = digits
        self._reversed = reversed
        self._counts: Mapping[Split, int] = {"train": examples, "val": held_out}
        self._seed = seed

    def documents(self, split: Split) -> Iterator[Document]:
        for number in range(self._counts[split]):
            name = f"{split} {number}"
            yield self._document(name, self._draw(name, split))

    def longer_documents(self, times: int) -> Iterator[Document]:
        least, most = (times - 1) * self._digits + 1, times * self._digits
        for number in range(self._counts["val"]):
            name = f"{times} times as long, {number}"
            yield self._document(name, Sum(*(self._term(f"{name} {side}", least, most) for side in (0, 1))))

    def fingerprint(self) -> str:
        """Return a hash of the options and of the code that draws."""
        options = (self._digits, self._reversed, *self._counts.values(), self._seed)
        return hashlib.sha256("\0".join([repr(options), *code_fingerprint(__file__)]).encode()).hexdigest()

    def _draw(self, name: str, split: Split) -> Sum:
        for attempt in range(4096):
            terms = Sum(*(self._term(f"{name} {attempt} {side}", 1, self._digits) for side in (0, 1)))
            if terms.is_held_out == (split == "val"):
                return terms
        raise AssertionError("one in eight sums is held out")

    def _term(self, key: str, least: int, most: int) -> int:
        """Return a number of `least` to `most` digits; all these lengths are equally likely."""
        key = f"{self._seed} {self._digits} {key}"
        count = least + number_of(f"{key} digits", 8) % (most - least + 1)
        low = 10 ** (count - 1) if count > 1 else 0
        return low + number_of(key, 8 + count // 2) % (10**count - low)

    def _document(self, name: str, terms: Sum) -> Document:
        answer = str(sum(terms))
        question = " + ".join(" ".join(str(term)) for term in terms)
        return Document(name, (f"{question} =",), target=(" ".join(answer[::-1] if self._reversed else answer),))


def number_of(key: str, size: int) -> int:
    """Return a random number of `size` bytes, the same on every machine."""
    return int.from_bytes(hashlib.shake_256(key.encode()).digest(size), "little")


@hookimpl
def corpus() -> Mapping[str, type[Corpus]]:
    return {"long-addition": LongAddition}
