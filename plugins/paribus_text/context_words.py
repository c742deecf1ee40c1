"""Words and punctuation marks of a context, and the numbers by which answers in it are compared as texts."""

from __future__ import annotations

import re
import string
import unicodedata
from bisect import bisect_left, bisect_right
from functools import cached_property, lru_cache
from hashlib import sha256
from typing import Final, NamedTuple, final

TEXTS: Final = -3.0  # in the labels of a document, before the numbers of the words of its context
EMPTY, ARTICLE, FIRST = 1, 2, 10  # numbers of words without text, of articles, and of others from here on
ARTICLES: Final = frozenset({"a", "an", "the"})
_UNIT: Final = re.compile(r"\w+|[^\w\s]")
_PUNCTUATION: Final = str.maketrans("", "", string.punctuation)
_HEX_DIGITS: Final = 12  # 48 bits, which a float64 holds exactly


class Place(NamedTuple):
    """Words of an answer."""

    first: int
    last: int
    is_widened: bool  # the answer begins or ends inside a word


@final
class Context:
    """Text split into words and punctuation marks, without invisible characters."""

    def __init__(self, text: str) -> None:
        self.text = text
        matches = [match for match in _UNIT.finditer(text) if not unicodedata.category(match[0][0]).startswith("C")]
        self.words = tuple(match[0] for match in matches)
        self._starts = [match.start() for match in matches]
        self._stops = [match.end() for match in matches]

    @cached_property
    def numbers(self) -> tuple[float, ...]:
        """Number of each word, negative if there is no space before it."""
        spaces = (self.text[stop:start] for stop, start in zip([0, *self._stops], self._starts, strict=False))
        return tuple(
            float(word_number(word) if any(map(str.isspace, space)) else -word_number(word))
            for word, space in zip(self.words, spaces, strict=True)
        )

    def words_of(self, start: int, stop: int) -> Place | None:
        """Return the words of a span of characters; None if it has none."""
        first, last = bisect_right(self._stops, start), bisect_left(self._starts, stop) - 1
        if first > last:
            return None
        return Place(first, last, self._starts[first] < start or self._stops[last] > stop)


@lru_cache(maxsize=1 << 18)
def word_number(word: str) -> int:
    """Return a number that is equal for words that are equal once SQuAD's script has normalized them.

    That is lower case, without the punctuation of ASCII. The numbers of other words are hashes of 48 bits.
    """
    text = word.lower().translate(_PUNCTUATION)
    if not text:
        return EMPTY
    return ARTICLE if text in ARTICLES else FIRST + int(sha256(text.encode()).hexdigest()[:_HEX_DIGITS], 16)
