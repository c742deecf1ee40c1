"""Corpus of dates: formats, positions of fields, and held-out dates."""

import hashlib
from datetime import date
from typing import Any, Literal

import pytest
from tests.fixtures.problems import raises_problem

from paribus import Document, SpecError, Split
from paribus_text.date_formats import FORMATS, STYLES, Locale, format_date, parse_date
from paribus_text.dates import HELD_OUT_DIVISOR, Dates, is_held_out

TINY: dict[str, Any] = {"pairs": 400, "held_out": 100}
EVERYBODY = tuple(FORMATS)
MARCH = date(1998, 3, 4)

WRITTEN: dict[Locale, tuple[str, str, str]] = {  # 4 March 1998 in each place's formats
    "en-us": ("3/4/1998", "Mar 4, 1998", "March 4, 1998"),
    "en-gb": ("04/03/1998", "4 Mar 1998", "4 March 1998"),
    "de": ("04.03.1998", "4. Mär 1998", "4. März 1998"),
    "es": ("4/3/1998", "4 mar 1998", "4 de marzo de 1998"),
    "fr": ("04/03/1998", "4 mars 1998", "4 mars 1998"),
    "hu": ("1998. 03. 04.", "1998. márc. 4.", "1998. március 4."),
    "it": ("04/03/1998", "4 mar 1998", "4 marzo 1998"),
    "ja": ("1998/03/04", "1998年3月4日", "西暦1998年3月4日"),
    "nl": ("04-03-1998", "4 mrt 1998", "4 maart 1998"),
    "sv": ("1998-03-04", "4 mar 1998", "den 4 mars 1998"),
}


def day(document: Document) -> date:
    return date.fromisoformat(document.name.rpartition(" ")[2])


@pytest.mark.parametrize("locale", EVERYBODY)
def test_dates_are_written_in_the_format_of_their_place(locale: Locale) -> None:
    assert tuple(format_date(MARCH, locale, style) for style in STYLES) == WRITTEN[locale]


@pytest.mark.parametrize("locale", EVERYBODY)
@pytest.mark.parametrize("style", STYLES)
def test_a_written_date_is_parsed_with_its_fields(locale: Locale, style: str) -> None:
    for month in range(1, 13):
        for number in (1, 9, 10, 28):
            day_ = date(1987, month, number)
            text = format_date(day_, locale, style)  # type: ignore[arg-type]  # values of parametrize
            parsed, fields = parse_date(text, locale)
            assert parsed == day_
            pieces = {field.name: text[field.start : field.end] for field in fields}
            assert (int(pieces["day"]), pieces["year"]) == (number, "1987")
            assert not pieces["month"].isdecimal() or int(pieces["month"]) == month
            assert [field.start for field in fields] == sorted(field.start for field in fields)


def test_a_text_in_another_format_is_refused() -> None:
    with pytest.raises(ValueError, match=r"format of `en-us`, got '04\.03\.1998'"):
        parse_date("04.03.1998", "en-us")


@pytest.mark.parametrize("directions", ["one", "all"])
def test_both_sides_of_a_pair_have_the_date_of_its_name(directions: Literal["one", "all"]) -> None:
    corpus = Dates(**TINY, locales=EVERYBODY, directions=directions)
    pairs = set()
    splits: tuple[Split, ...] = ("train", "val")
    for split in splits:
        for document in corpus.documents(split):
            sides = (document.text, document.language), (" ".join(document.target), document.target_language)
            assert [parse_date(text, locale)[0] for text, locale in sides] == [day(document)] * 2  # type: ignore[arg-type]  # as above
            pairs.add((document.language, document.target_language))
    assert all(source != target for source, target in pairs)
    assert len(pairs) == (90 if directions == "all" else 9)
    assert directions == "all" or {source for source, _ in pairs} == {"en-us"}


def test_each_field_of_a_target_is_a_field_of_its_source() -> None:
    corpus = Dates(**TINY, locales=EVERYBODY, directions="all")
    for document in corpus.documents("train"):
        source, target = corpus.fields(document)
        assert {field.name for field in source} == {field.name for field in target} == {"day", "month", "year"}
        texts = [
            {field.name: text[field.start : field.end] for field in fields}
            for text, fields in ((document.sentences[0], source), (document.target[0], target))
        ]
        assert texts[0]["year"] == texts[1]["year"] == str(day(document).year)
        assert int(texts[0]["day"]) == int(texts[1]["day"]) == day(document).day


def test_german_fields_are_found_in_the_american_date() -> None:
    source, target = Dates().fields(
        Document("", ("March 4, 1998",), target=("4. März 1998",), language="en-us", target_language="de")
    )
    assert source == (("month", 0, 5), ("day", 6, 7), ("year", 9, 13))
    assert target == (("day", 0, 1), ("month", 3, 7), ("year", 8, 12))


def test_a_held_out_date_is_held_out_in_every_format() -> None:
    splits: tuple[Split, ...] = ("train", "val")
    corpora = [Dates(**TINY, seed=seed, locales=pair) for seed in (0, 1) for pair in (("en-us", "de"), ("fr", "ja"))]
    train, val = ({day(it) for corpus in corpora for it in corpus.documents(split)} for split in splits)
    assert not train & val
    swapped = {date(it.year, it.day, it.month) for it in train if it.day <= 12}
    assert not swapped & val, "the fourth of March is written in one place as the third of April is in another"
    assert all(map(is_held_out, val))
    assert not any(map(is_held_out, train))


def test_about_one_date_in_eight_is_held_out() -> None:
    days = [date.fromordinal(number) for number in range(date(1900, 1, 1).toordinal(), date(2050, 1, 1).toordinal())]
    assert sum(map(is_held_out, days)) / len(days) == pytest.approx(1 / HELD_OUT_DIVISOR, rel=0.05)


def test_a_pair_depends_only_on_seed_split_and_number() -> None:
    few, many = Dates(pairs=16, held_out=8), Dates(pairs=30, held_out=9)
    assert list(many.documents("train"))[:16] == list(few.documents("train"))
    assert list(many.documents("val"))[:8] == list(few.documents("val"))
    assert list(Dates(pairs=16, seed=1).documents("train")) != list(few.documents("train"))


@pytest.mark.thorough
def test_the_dates_are_the_same_on_every_machine() -> None:
    """A fixed digest: records of studies depend on the exact pairs."""
    documents = list(Dates().documents("train"))
    assert (documents[0].text, documents[0].target) == ("September 19, 2046", ("19. September 2046",))
    texts = "".join(document.text + document.target[0] for document in documents)
    assert hashlib.sha256(texts.encode()).hexdigest()[:16] == "60929cd59ba376c4"


def test_years_styles_and_directions_are_about_equally_frequent() -> None:
    documents = list(Dates(pairs=3000, locales=("en-us", "de", "ja"), years=10).documents("train"))
    years = [day(it).year for it in documents]
    assert {years.count(year) > 200 for year in range(1900, 1910)} == {True}
    assert 1300 < sum(it.target_language == "ja" for it in documents) < 1700
    assert 850 < sum("/" in it.text for it in documents) < 1150


@pytest.mark.parametrize("named", [(), ("de",), ("de", "de")])
def test_fewer_than_two_places_are_refused(named: tuple[Locale, ...]) -> None:
    with raises_problem(SpecError, "too-few", "corpus.locales"):
        Dates(locales=named)


def test_missing_styles_and_years_of_five_digits_are_refused() -> None:
    with raises_problem(SpecError, "too-few", "corpus.styles", "short, medium, long"):
        Dates(styles=())
    with raises_problem(SpecError, "out-of-range", "corpus.years", "9999"):
        Dates(first=9000, years=1000)
    Dates(first=9000, years=999)
