"""Synthetic translation corpus: dates in the formats of two locales."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from datetime import date, timedelta
from typing import Annotated, ClassVar, Final, Literal, final

from paribus import Corpus, CorpusTraits, Document, Problem, Range, SpecError, Split, code_fingerprint
from paribus_text import date_formats
from paribus_text.date_formats import Field, Locale, Style
from paribus_text.holdout import digest

HELD_OUT_DIVISOR: Final = 8  # one in eight dates is held out


@final
class Dates(Corpus):
    """Pairs of one date in the formats of two locales: a small task for "Neural Machine Translation by Jointly Learning
    to Align and Translate" (Bahdanau et al. 2015).

    Pair i of a split depends on the seed, the split and i only, so a larger corpus extends a smaller one. A date is
    held out in every format, together with the date with day and month swapped, which another locale writes alike.
    `fields` returns the characters of the day, the month and the year.
    """

    traits: ClassVar[CorpusTraits] = {"provides": ["documents", "pairs"], "document_facts": {"languages": "locales"}}

    def __init__(
        self,
        *,
        locales: Annotated[tuple[Locale, ...], "two or more locales"] = ("en-us", "de"),
        directions: Annotated[Literal["one", "all"], "from the first locale to the others, or between all"] = "one",
        styles: Annotated[tuple[Style, ...], "date styles: numeric, with short or with long names of months"] = (
            "short",
            "medium",
            "long",
        ),
        first: Annotated[int, "first year", Range(1, 9998)] = 1900,
        years: Annotated[int, "number of years", Range(1, 9998)] = 150,
        pairs: Annotated[int, "pairs of the training split", Range(1, 10_000_000)] = 16384,
        held_out: Annotated[int, "pairs of the validation split", Range(1, 1_000_000)] = 512,
        seed: Annotated[int, "seed of all pairs", Range(0)] = 0,
    ) -> None:
        _check_options(locales, styles, first + years)
        self._directions = (
            [(locales[0], target) for target in locales[1:]]
            if directions == "one"
            else [(source, target) for source in locales for target in locales if source != target]
        )
        self._styles = styles
        self._first = date(first, 1, 1)
        self._days = (date(first + years, 1, 1) - self._first).days
        self._counts: Mapping[Split, int] = {"train": pairs, "val": held_out}
        self._seed = seed

    def documents(self, split: Split) -> Iterator[Document]:
        for index in range(self._counts[split]):
            day, (source, target), style = self._draw(split, index)
            texts = [date_formats.format_date(day, locale, style) for locale in (source, target)]
            yield Document(
                f"{split} {index}, {day.isoformat()}",
                (texts[0],),
                target=(texts[1],),
                language=source,
                target_language=target,
            )

    def fields(self, document: Document) -> tuple[tuple[Field, ...], tuple[Field, ...]]:
        """Return the spans of the day, the month and the year in the source and in the target of a pair."""
        sides = ((document.sentences, document.language), (document.target, document.target_language))
        source, target = (date_formats.parse_date(" ".join(text), language)[1] for text, language in sides)  # type: ignore[arg-type]  # documents of this corpus have a locale
        return source, target

    def fingerprint(self) -> str:
        """Return a hash of the options and of the code that draws and formats."""
        options = (self._directions, self._styles, self._first, self._days, *self._counts.values(), self._seed)
        code = code_fingerprint(__file__, date_formats.__file__)
        return digest([*map(str, options), *code])

    def _draw(self, split: Split, index: int) -> tuple[date, tuple[Locale, Locale], Style]:
        for attempt in range(1000):
            numbers = _numbers(f"{self._seed} {split} {index} {attempt}", 3)
            day = self._first + timedelta(days=numbers[0] % self._days)
            if is_held_out(day) == (split == "val"):
                return (
                    day,
                    self._directions[numbers[1] % len(self._directions)],
                    self._styles[numbers[2] % len(self._styles)],
                )
        raise AssertionError("every year has dates of both splits")


def is_held_out(day: date) -> bool:
    """Return True if a date is held out; the same for the date with day and month swapped."""
    low, high = sorted((day.day, day.month))
    return _numbers(f"{day.year} {low} {high}", 1)[0] % HELD_OUT_DIVISOR == 0


def _numbers(key: str, count: int) -> list[int]:
    """Return random 32-bit integers, the same on every machine."""
    bits = hashlib.shake_256(key.encode()).digest(4 * count)
    return [int.from_bytes(bits[4 * number : 4 * number + 4], "little") for number in range(count)]


def _check_options(names: tuple[Locale, ...], styles: tuple[Style, ...], end: int) -> None:
    if len(set(names)) < max(2, len(names)):
        message = f"expected two or more distinct locales, got {', '.join(names) or 'none'}"
        raise SpecError(
            Problem(code="too-few", path="corpus.locales", message=message, valid="two or more, none twice")
        )
    if not styles:
        message = "expected a style, got none"
        raise SpecError(
            Problem(code="too-few", path="corpus.styles", message=message, valid=", ".join(date_formats.STYLES))
        )
    if end > 9999:
        message = f"expected years up to 9998, got {end - 1}"
        raise SpecError(Problem(code="out-of-range", path="corpus.years", message=message, valid="fewer"))
