"""How dates are written in a few places: a table of patterns, and the names of months."""

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
    """A part of a date, and which characters of a text tell it: those from `start` up to `end`."""

    name: Name
    start: int
    end: int


class Manner(NamedTuple):
    """How a place writes dates. In its patterns `d` and `m` are numbers, `dd` and `mm` have two digits, `b` is the
    short name of a month and `B` the long one."""

    short: str
    medium: str
    long: str
    months: str = ""
    brief: str = ""  # where they are none of the first three letters of the long ones


_ENGLISH: Final = "January February March April May June July August September October November December"

MANNERS: Final[Mapping[Locale, Manner]] = {
    "en-us": Manner("{m}/{d}/{y}", "{b} {d}, {y}", "{B} {d}, {y}", _ENGLISH),
    "en-gb": Manner("{dd}/{mm}/{y}", "{d} {b} {y}", "{d} {B} {y}", _ENGLISH),
    "de": Manner(
        "{dd}.{mm}.{y}",
        "{d}. {b} {y}",
        "{d}. {B} {y}",
        "Januar Februar März April Mai Juni Juli August September Oktober November Dezember",
    ),
    "es": Manner(
        "{d}/{m}/{y}",
        "{d} {b} {y}",
        "{d} de {B} de {y}",
        "enero febrero marzo abril mayo junio julio agosto septiembre octubre noviembre diciembre",
    ),
    "fr": Manner(
        "{dd}/{mm}/{y}",
        "{d} {b} {y}",
        "{d} {B} {y}",
        "janvier février mars avril mai juin juillet août septembre octobre novembre décembre",
        "janv. févr. mars avr. mai juin juil. août sept. oct. nov. déc.",
    ),
    "hu": Manner(
        "{y}. {mm}. {dd}.",
        "{y}. {b} {d}.",
        "{y}. {B} {d}.",
        "január február március április május június július augusztus szeptember október november december",
        "jan. febr. márc. ápr. máj. jún. júl. aug. szept. okt. nov. dec.",
    ),
    "it": Manner(
        "{dd}/{mm}/{y}",
        "{d} {b} {y}",
        "{d} {B} {y}",
        "gennaio febbraio marzo aprile maggio giugno luglio agosto settembre ottobre novembre dicembre",
    ),
    "ja": Manner("{y}/{mm}/{dd}", "{y}年{m}月{d}日", "西暦{y}年{m}月{d}日"),
    "nl": Manner(
        "{dd}-{mm}-{y}",
        "{d} {b} {y}",
        "{d} {B} {y}",
        "januari februari maart april mei juni juli augustus september oktober november december",
        "jan feb mrt apr mei jun jul aug sep okt nov dec",
    ),
    "sv": Manner(
        "{y}-{mm}-{dd}",
        "{d} {b} {y}",
        "den {d} {B} {y}",
        "januari februari mars april maj juni juli augusti september oktober november december",
    ),
}
_FIELDS: Final[Mapping[str, Name]] = {
    "d": "day", "dd": "day", "m": "month", "mm": "month", "b": "month", "B": "month", "y": "year"
}  # fmt: skip


def written(day: date, locale: Locale, style: Style) -> str:
    """A date as it is written there, in one of three styles."""
    manner = MANNERS[locale]
    long, brief = _months(manner)
    numbers = {"d": str(day.day), "dd": f"{day.day:02}", "m": str(day.month), "mm": f"{day.month:02}"}
    months = {"b": brief[day.month - 1], "B": long[day.month - 1]} if long else {}
    pattern: str = getattr(manner, style)
    return pattern.format(**numbers, **months, y=f"{day.year:04}")


def read(text: str, locale: Locale) -> tuple[date, tuple[Field, ...]]:
    """The date that a text tells where it is written so, and which characters tell what, in their order."""
    long, brief = _months(MANNERS[locale])
    for style in STYLES:
        found = _expression(locale, style).fullmatch(text)
        if found is not None:
            fields = [Field(name, *found.span(name)) for name in NAMES]
            month = found["month"]
            number = int(month) if month.isdecimal() else ((long if style == "long" else brief).index(month) + 1)
            return date(int(found["year"]), number, int(found["day"])), tuple(sorted(fields, key=lambda it: it.start))
    raise ValueError(f"{text!r} is no date as `{locale}` writes it")


@lru_cache
def _expression(locale: Locale, style: Style) -> re.Pattern[str]:
    """What dates of one style look like."""
    manner = MANNERS[locale]
    long, brief = _months(manner)
    shapes = {"d": r"\d{1,2}", "dd": r"\d{2}", "m": r"\d{1,2}", "mm": r"\d{2}", "y": r"\d{4}"}
    shapes |= {"b": "|".join(map(re.escape, brief)), "B": "|".join(map(re.escape, long))}
    pieces: Iterator[str] = (
        f"(?P<{_FIELDS[piece]}>{shapes[piece]})" if place % 2 else re.escape(piece)
        for place, piece in enumerate(re.split(r"\{(\w+)\}", getattr(manner, style)))
    )
    return re.compile("".join(pieces))


def _months(manner: Manner) -> tuple[list[str], list[str]]:
    """Their long names and their short ones."""
    long = manner.months.split()
    return long, manner.brief.split() or [name[:3] for name in long]
