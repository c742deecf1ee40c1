"""Parsing of YAML scalars: plain spellings are read, misleading ones are refused with the value of YAML."""

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
def test_a_plain_spelling_is_parsed(text: str, value: object) -> None:
    parsed = parse_scalar(text)
    assert parsed == value
    assert type(parsed) is type(value)


def test_nan_is_parsed() -> None:
    assert math.isnan(parse_scalar(".nan"))


@pytest.mark.parametrize("text", ["yes", "No", "ON", "off", "no"])
def test_yes_and_no_are_refused(text: str) -> None:
    yaml_value = "true" if text.lower() in ("yes", "on") else "false"
    with pytest.raises(MisreadError, match=rf"YAML read `{text}` as a boolean \({yaml_value}\); quote it"):
        parse_scalar(text)


@pytest.mark.parametrize(
    ("text", "yaml_value"),
    [
        ("010", "8"), ("-010", "-8"), ("0x1F", "31"), ("0b101", "5"), ("0o14", "12"), ("1_000", "1000"),
        ("12:30", "750"), ("1:30:00", "5400"), ("12:30.5", "750.5"), ("1_000.5", "1000.5"), (".0_", "0.0"), ("08", "8"),
        ("00", "0"), ("-0x10", "-16"),
    ],
)  # fmt: skip
def test_a_number_that_is_not_a_plain_decimal_is_refused(text: str, yaml_value: str) -> None:
    with pytest.raises(MisreadError, match=rf"`{text}` would be read as {yaml_value}; write a plain decimal number"):
        parse_scalar(text)


def test_a_number_of_too_many_digits_is_refused() -> None:
    with pytest.raises(MisreadError, match=r"a number of 5000 digits is too large"):
        parse_scalar("9" * 5000)


@given(st.integers(-(10**18), 10**18))
def test_integers_round_trip(number: int) -> None:
    assert parse_scalar(str(number)) == number


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_floats_round_trip(number: float) -> None:
    assert parse_scalar(repr(number)) == number


@given(st.text(alphabet="0123456789abcdefoxntruely+-._:~", max_size=8))
def test_parsed_values_equal_those_of_pyyaml_unless_it_reads_text(text: str) -> None:
    try:
        actual = parse_scalar(text)
    except MisreadError:
        return
    try:
        reference = yaml.safe_load(f"[{text}]")
    except (yaml.YAMLError, ValueError):
        return
    if isinstance(reference, list) and len(reference) == 1 and not isinstance(reference[0], (str, dict)):
        assert actual == reference[0] or str(reference[0]) == "nan"
