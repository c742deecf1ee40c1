"""Date formats of several locales: patterns and names of months, formatting and parsing."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from datetime import date
from functools import lru_cache
from typing import Final, Literal, NamedTuple, get_args

Locale = Literal["en-us", "en-gb", "de", "es", "fr", "hu", "it", "ja", "nl", "sv"]
Style = Literal["short", "medium", "long"]
Name = Literal["day", "month", "year"]

STYLES: Final[tuple[Style, ...]] = get_args(Style)
NAMES: Final[tuple[Name, ...]] = get_args(Name)


class Field(NamedTuple):
    """A part of a date, and its characters in a text, from `start` to `end`."""

    name: Name
    start: int
    end: int


class DateFormat(NamedTuple):
    """Date patterns of a locale: `d` and `m` are numbers, `dd` and `mm` have two digits, `b` is the short name of a
    month and `B` the long one."""

    short: str
    medium: str
    long: str
    months: str = ""
    short_months: str = ""  # if they are not the first three letters of the long ones


_ENGLISH: Final = "January February March April May June July August September October November December"

FORMATS: Final[Mapping[Locale, DateFormat]] = {
    "en-us": DateFormat("{m}/{d}/{y}", "{b} {d}, {y}", "{B} {d}, {y}", _ENGLISH),
    "en-gb": DateFormat("{dd}/{mm}/{y}", "{d} {b} {y}", "{d} {B} {y}", _ENGLISH),
    "de": DateFormat(
        "{dd}.{mm}.{y}",
        "{d}. {b} {y}",
        "{d}. {B} {y}",
        "Januar Februar März April Mai Juni Juli August September Oktober November Dezember",
    ),
    "es": DateFormat(
        "{d}/{m}/{y}",
        "{d} {b} {y}",
        "{d} de {B} de {y}",
        "enero febrero marzo abril mayo junio julio agosto septiembre octubre noviembre diciembre",
    ),
    "fr": DateFormat(
        "{dd}/{mm}/{y}",
        "{d} {b} {y}",
        "{d} {B} {y}",
        "janvier février mars avril mai juin juillet août septembre octobre novembre décembre",
        "janv. févr. mars avr. mai juin juil. août sept. oct. nov. déc.",
    ),
    "hu": DateFormat(
        "{y}. {mm}. {dd}.",
        "{y}. {b} {d}.",
        "{y}. {B} {d}.",
        "január február március április május június július augusztus szeptember október november december",
        "jan. febr. márc. ápr. máj. jún. júl. aug. szept. okt. nov. dec.",
    ),
    "it": DateFormat(
        "{dd}/{mm}/{y}",
        "{d} {b} {y}",
        "{d} {B} {y}",
        "gennaio febbraio marzo aprile maggio giugno luglio agosto settembre ottobre novembre dicembre",
    ),
    "ja": DateFormat("{y}/{mm}/{dd}", "{y}年{m}月{d}日", "西暦{y}年{m}月{d}日"),
    "nl": DateFormat(
        "{dd}-{mm}-{y}",
        "{d} {b} {y}",
        "{d} {B} {y}",
        "januari februari maart april mei juni juli augustus september oktober november december",
        "jan feb mrt apr mei jun jul aug sep okt nov dec",
    ),
    "sv": DateFormat(
        "{y}-{mm}-{dd}",
        "{d} {b} {y}",
        "den {d} {B} {y}",
        "januari februari mars april maj juni juli augusti september oktober november december",
    ),
}
_FIELDS: Final[Mapping[str, Name]] = {
    "d": "day", "dd": "day", "m": "month", "mm": "month", "b": "month", "B": "month", "y": "year"
}  # fmt: skip


def format_date(day: date, locale: Locale, style: Style) -> str:
    """Return a date in the format of a locale, in one of three styles."""
    date_format = FORMATS[locale]
    long, short = _months(date_format)
    numbers = {"d": str(day.day), "dd": f"{day.day:02}", "m": str(day.month), "mm": f"{day.month:02}"}
    months = {"b": short[day.month - 1], "B": long[day.month - 1]} if long else {}
    pattern: str = getattr(date_format, style)
    return pattern.format(**numbers, **months, y=f"{day.year:04}")


def parse_date(text: str, locale: Locale) -> tuple[date, tuple[Field, ...]]:
    """Return the date of a text in the format of a locale, and the spans of its fields in order."""
    long, short = _months(FORMATS[locale])
    for style in STYLES:
        match = _expression(locale, style).fullmatch(text)
        if match is not None:
            fields = [Field(name, *match.span(name)) for name in NAMES]
            month = match["month"]
            number = int(month) if month.isdecimal() else ((long if style == "long" else short).index(month) + 1)
            return date(int(match["year"]), number, int(match["day"])), tuple(
                sorted(fields, key=lambda field: field.start)
            )
    raise ValueError(f"expected a date in the format of `{locale}`, got {text!r}")


@lru_cache
def _expression(locale: Locale, style: Style) -> re.Pattern[str]:
    """Return the regular expression of dates of one style."""
    date_format = FORMATS[locale]
    long, short = _months(date_format)
    shapes = {"d": r"\d{1,2}", "dd": r"\d{2}", "m": r"\d{1,2}", "mm": r"\d{2}", "y": r"\d{4}"}
    shapes |= {"b": "|".join(map(re.escape, short)), "B": "|".join(map(re.escape, long))}
    pieces: Iterator[str] = (
        f"(?P<{_FIELDS[piece]}>{shapes[piece]})" if index % 2 else re.escape(piece)
        for index, piece in enumerate(re.split(r"\{(\w+)\}", getattr(date_format, style)))
    )
    return re.compile("".join(pieces))


def _months(date_format: DateFormat) -> tuple[list[str], list[str]]:
    """Return the long and the short names of months."""
    long = date_format.months.split()
    return long, date_format.short_months.split() or [name[:3] for name in long]
