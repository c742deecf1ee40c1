"""Dates as they are written in one place and in another: translation that every machine has."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from datetime import date, timedelta
from pathlib import Path
from typing import Annotated, ClassVar, Final, Literal, final

from paribus import Corpus, Document, Problem, Range, SpecError, Split, Traits
from paribus_text import locales
from paribus_text.holding import digest
from paribus_text.locales import Field, Locale, Style

ONE_IN: Final = 8  # of all dates, this share is held out


@final
class Dates(Corpus):
    """Pairs of one date, written as one place writes it and as another does: "Neural Machine Translation by Jointly
    Learning to Align and Translate" (Bahdanau et al. 2015) on the smallest scale that has something to align.

    Pair i of a split is a function of the seed, the split and i, so that more pairs are the same ones and others. A
    date is held out or it is not, wherever it stands and however it is written, and so is the one that has its day and
    its month in each other's place, which another locale writes alike. `fields` knows which characters tell what.
    """

    traits: ClassVar[Traits] = {"provides": ["documents", "pairs"], "tells": {"languages": "locales"}}

    def __init__(
        self,
        *,
        locales: Annotated[tuple[Locale, ...], "who writes: two or more"] = ("en-us", "de"),
        ways: Annotated[Literal["one", "all"], "from the first into each other, or from each into each"] = "one",
        styles: Annotated[tuple[Style, ...], "numbers alone, short names of months, long ones"] = (
            "short",
            "medium",
            "long",
        ),
        first: Annotated[int, "the first year", Range(1, 9998)] = 1900,
        years: Annotated[int, "how many years", Range(1, 9998)] = 150,
        pairs: Annotated[int, "pairs of the training split", Range(1, 10_000_000)] = 16384,
        held_out: Annotated[int, "pairs of the validation split", Range(1, 1_000_000)] = 512,
        seed: Annotated[int, "what all pairs are drawn from", Range(0)] = 0,
    ) -> None:
        _several(locales, styles, first + years)
        others = locales[1:]
        self._ways = (
            [(locales[0], other) for other in others]
            if ways == "one"
            else [(one, other) for one in locales for other in locales if one != other]
        )
        self._styles = styles
        self._first = date(first, 1, 1)
        self._days = (date(first + years, 1, 1) - self._first).days
        self._counts: Mapping[Split, int] = {"train": pairs, "val": held_out}
        self._seed = seed

    def documents(self, split: Split) -> Iterator[Document]:
        for index in range(self._counts[split]):
            day, (source, target), style = self._drawn(split, index)
            texts = [locales.written(day, locale, style) for locale in (source, target)]
            yield Document(
                f"{split} {index}, {day.isoformat()}",
                (texts[0],),
                target=(texts[1],),
                language=source,
                target_language=target,
            )

    def fields(self, document: Document) -> tuple[tuple[Field, ...], tuple[Field, ...]]:
        """Of a pair, which characters of the source and of the target tell the day, the month and the year."""
        sides = ((document.sentences, document.language), (document.target, document.target_language))
        source, target = (locales.read(" ".join(text), language)[1] for text, language in sides)  # type: ignore[arg-type]  # a document of this corpus is of one of its locales
        return source, target

    def fingerprint(self) -> str:
        """Of the options and of the code that draws and writes."""
        options = (self._ways, self._styles, self._first, self._days, *self._counts.values(), self._seed)
        code = (Path(file).read_text(encoding="utf-8") for file in (__file__, locales.__file__))
        return digest([*map(str, options), *code])

    def _drawn(self, split: Split, index: int) -> tuple[date, tuple[Locale, Locale], Style]:
        for attempt in range(1000):
            numbers = _numbers(f"{self._seed} {split} {index} {attempt}", 3)
            day = self._first + timedelta(days=numbers[0] % self._days)
            if held(day) == (split == "val"):
                return day, self._ways[numbers[1] % len(self._ways)], self._styles[numbers[2] % len(self._styles)]
        raise AssertionError("a year has dates of either kind")


def held(day: date) -> bool:
    """Whether a date is held out: decided by the date, and the same for its mirror."""
    low, high = sorted((day.day, day.month))
    return _numbers(f"{day.year} {low} {high}", 1)[0] % ONE_IN == 0


def _numbers(key: str, count: int) -> list[int]:
    """Whole numbers of 32 bits, the same on every machine."""
    bits = hashlib.shake_256(key.encode()).digest(4 * count)
    return [int.from_bytes(bits[4 * place : 4 * place + 4], "little") for place in range(count)]


def _several(named: tuple[Locale, ...], styles: tuple[Style, ...], end: int) -> None:
    if len(set(named)) < max(2, len(named)):
        what = f"a date is written by one and by another, but the locales are {', '.join(named) or 'none'}"
        raise SpecError(Problem(code="too-few", path="corpus.locales", message=what, valid="two or more, none twice"))
    if not styles:
        what = "a date is written in some style, but there is none"
        raise SpecError(Problem(code="too-few", path="corpus.styles", message=what, valid=", ".join(locales.STYLES)))
    if end > 9999:
        what = f"years of four digits end with 9998, but these end with {end - 1}"
        raise SpecError(Problem(code="out-of-range", path="corpus.years", message=what, valid="fewer"))
