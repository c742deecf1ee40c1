"""A scalar is what it looks like, or an error that says what YAML would have made of it."""

import math

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from paribus.specs.yaml_reader import MisreadError, parse_scalar


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("", None), ("~", None), ("null", None), ("Null", None),
        ("true", True), ("True", True), ("FALSE", False),
        ("0", 0), ("-7", -7), ("+3", 3), ("123456789", 123456789),
        ("1e-3", 1e-3), ("1E3", 1000.0), ("1.5", 1.5), ("-.5", -0.5), ("2.", 2.0), ("1.0e-05", 1e-5), ("0.1", 0.1),
        ("00.5", 0.5), (".inf", math.inf), ("-.INF", -math.inf),
        ("gqa", "gqa"), ("1.2.3", "1.2.3"), ("2020-01-01", "2020-01-01"), ("nan", "nan"), ("y", "y"), ("n", "n"),
        ("a:b", "a:b"), ("1a", "1a"), ("-", "-"), ("+", "+"), (".", "."), ("e3", "e3"), ("0xzz", "0xzz"), ("_1", "_1"),
    ],
)  # fmt: skip
def test_a_plain_spelling_is_read_as_it_looks(text: str, value: object) -> None:
    read = parse_scalar(text)
    assert read == value
    assert type(read) is type(value)


def test_not_a_number_is_read_and_refused_by_whoever_wants_a_number() -> None:
    assert math.isnan(parse_scalar(".nan"))


@pytest.mark.parametrize("text", ["yes", "No", "ON", "off", "no"])
def test_a_boolean_of_norway_is_refused(text: str) -> None:
    read = "true" if text.lower() in ("yes", "on") else "false"
    with pytest.raises(MisreadError, match=rf"YAML read `{text}` as a boolean \({read}\); quote it"):
        parse_scalar(text)


@pytest.mark.parametrize(
    ("text", "read"),
    [
        ("010", "8"), ("-010", "-8"), ("0x1F", "31"), ("0b101", "5"), ("0o14", "12"), ("1_000", "1000"),
        ("12:30", "750"), ("1:30:00", "5400"), ("12:30.5", "750.5"), ("1_000.5", "1000.5"), (".0_", "0.0"), ("08", "8"),
        ("00", "0"), ("-0x10", "-16"),
    ],
)  # fmt: skip
def test_a_number_that_is_no_plain_decimal_is_refused_with_the_value_as_read(text: str, read: str) -> None:
    with pytest.raises(MisreadError, match=rf"`{text}` would be read as {read}; write a plain decimal number"):
        parse_scalar(text)


def test_a_number_that_nothing_can_be_is_refused() -> None:
    with pytest.raises(MisreadError, match=r"a number of 5000 digits is too large"):
        parse_scalar("9" * 5000)


@given(st.integers(-(10**18), 10**18))
def test_whole_numbers_come_back(number: int) -> None:
    assert parse_scalar(str(number)) == number


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_numbers_come_back(number: float) -> None:
    assert parse_scalar(repr(number)) == number


@given(st.text(alphabet="0123456789abcdefoxntruely+-._:~", max_size=8))
def test_where_we_read_something_yaml_reads_the_same_or_text(text: str) -> None:
    try:
        ours = parse_scalar(text)
    except MisreadError:
        return
    try:
        theirs = yaml.safe_load(f"[{text}]")
    except (yaml.YAMLError, ValueError):
        return
    if isinstance(theirs, list) and len(theirs) == 1 and not isinstance(theirs[0], (str, dict)):
        assert ours == theirs[0] or str(theirs[0]) == "nan"
