"""YAML reader: plain values with lines and columns; misleading scalars are errors."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from tests.fixtures.problems import raises_problem

from paribus.errors import SpecError
from paribus.specs.tree import NODES, UNREAD, plain_tree
from paribus.specs.yaml_reader import BYTES, MisreadError, parse_scalar, read_file, read_yaml

Write = Callable[[str | bytes], str]


def file_error(write: Write, text: str | bytes) -> str:
    """Return the one-line error for a file that cannot be read."""
    with pytest.raises(SpecError, match=r"error\[") as caught:
        read_file(Path(write(text)))
    (problem,) = caught.value.problems
    line = str(problem)
    assert "\n" not in line
    return line


def test_every_value_has_its_line_number() -> None:
    tree = read_yaml("a: 1\nb:\n  - x\n  - {c: 2.5}\n", "s.yaml")
    assert tree.data == {"a": 1, "b": ["x", {"c": 2.5}]}
    assert tree.locations[("a",)] == "s.yaml:1"
    assert tree.locations[("b", 1, "c")] == "s.yaml:4"
    assert tree.location(("b", 1, "unheard", "of")) == "s.yaml:4"
    assert tree.problems == []


def test_a_quoted_scalar_is_text() -> None:
    assert read_yaml("a: '010'\nb: \"no\"\nc: |\n  1\n", "s").data == {"a": "010", "b": "no", "c": "1\n"}


def test_a_key_is_read_as_text() -> None:
    assert read_yaml("on: 1\n1: 2\n~: 3\n", "s").data == {"on": 1, "1": 2, "~": 3}


@pytest.mark.parametrize(
    ("text", "location", "expected"),
    [
        (b"", "s.yaml:1:1", "expected a mapping, got empty"),
        (b"# nothing\n", "s.yaml:1:1", "got empty"),
        (b"---\n...\n", "s.yaml:1:1", "got empty"),
        (b"just words\n", "s.yaml:1:1", 'got the text "just words"'),
        (b"- a\n", "s.yaml:1:1", "got a list"),
        (b"7\n", "s.yaml:1:1", "got the number 7"),
        (b"a: 1\n  b: 2\n", "s.yaml:2:4", "invalid YAML: mapping values are not allowed"),
        (b"a:\n\tb: 2\n", "s.yaml:2:1", "cannot start any token; valid: indent with spaces"),
        (b"a: [1, 2\n", "s.yaml:2:1", "invalid YAML:"),
        (b"a: @x\n", "s.yaml:1:4", "indent with spaces, and quote text that begins with a special character"),
        (b"a: 1\nb 2\nc: 3\n", "s.yaml:3:1", "invalid YAML:"),
        (b"\xef\xbb\xbfa: 1\n", "s.yaml:1:1", "the file begins with a byte-order mark; valid: UTF-8 without one"),
        (b"a: 1\nb: \xff\n", "s.yaml:2:4", "expected UTF-8, got the byte 0xff"),
        (b"a: 1\nb: x\x00y\n", "s.yaml:2:5", "the file contains the control character \\u0000"),
        (b"a: \x1b[31m\n", "s.yaml:1:4", "the file contains the control character \\u001b"),
        (b"a: 1\n\xfe\xff\x00a", "s.yaml:2:1", "expected UTF-8"),
        (b"%YAML 9.9\n---\na: 1\n", "s.yaml:1:1", "invalid YAML:"),
        (b"a: \xef\xbf\xbe\n", "s.yaml", "invalid YAML:"),
    ],
)  # fmt: skip
def test_an_invalid_file_is_reported_in_one_line_with_its_location(
    write: Write, text: bytes, location: str, expected: str
) -> None:
    line = file_error(write, text)
    assert expected in line
    assert f"({location}" in line


def problems(text: str) -> list[str]:
    return [str(problem) for problem in read_yaml(text, "s.yaml").problems]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a: 1\nb: 2\na: 3\n", "error[duplicate-key] a (s.yaml:3:1)"),
        ("a: 1\n---\nb: 2\n", "error[multiple-documents] (s.yaml:2:1): expected one document, got a second one"),
        ("a: &x 1\n", "error[alias] a (s.yaml:1:4): `&x`"),
        ("a: *x\n", "error[alias] a (s.yaml:1:4): `*x`"),
        ("a: !!python/object/apply:os.system ['touch marker']\n", "the tag `tag:yaml.org,2002:python/object/apply:os"),
        ("a: !!str 5\n", "error[tag] a (s.yaml:1:4)"),
        ("a: !env HOME\n", "never names Python objects"),
        ("a: {[1]: 2}\n", "error[missing-key] a (s.yaml:1:5)"),
        ("a: 010\n", "error[misread] a (s.yaml:1:4): `010` would be read as 8"),
        ("a: [x, no]\n", "error[misread] a.1 (s.yaml:1:8)"),
    ],
)
def test_a_forbidden_yaml_feature_is_reported_with_its_location(text: str, expected: str) -> None:
    assert expected in problems(text)[0]


def test_all_problems_are_reported_at_once_and_other_values_are_read() -> None:
    tree = read_yaml("a: no\nb: 010\nc: *d\ne: 5\n", "s")
    assert [problem.path for problem in tree.problems] == ["a", "b", "c"]
    assert tree.data == {"a": UNREAD, "b": UNREAD, "c": UNREAD, "e": 5}


def test_a_tag_executes_nothing(write: Write) -> None:
    read_file(Path(write("a: !!python/object/apply:os.system ['touch marker']\n")))
    assert not Path("marker").exists()


@pytest.mark.thorough
def test_hostile_files_are_refused_quickly(write: Write) -> None:
    started = time.process_time()
    deep, nested = "too deep; valid: at most 64 levels", "a: " + "[" * 2000 + "]" * 2000
    assert deep in file_error(write, nested)
    assert deep in file_error(write, "".join(f"{' ' * level}a:\n" for level in range(600)))
    assert "too many values; valid: at most 100,000" in file_error(write, "a: [" + "x," * 200_000 + "]")
    assert f"more than {BYTES:,} bytes" in file_error(write, "a: " + "x" * BYTES)
    doubled = (f"{name}: &{name} [*{previous}, *{previous}]" for previous, name in pairwise("abcdefghijkl"))
    bomb = "\n".join(["a: &a [x, x]", *doubled])
    assert problems(bomb)
    assert time.process_time() - started < 5  # a late check takes minutes


def test_at_most_a_hundred_mistakes_are_reported() -> None:
    assert len(problems("".join(f"k{number}: no\n" for number in range(1000)))) == 100


def test_an_unreadable_file_is_refused(tmp_path: Path) -> None:
    with raises_problem(SpecError, "cannot-read", tmp_path):
        read_file(tmp_path)
    with raises_problem(SpecError, "cannot-read", "none.yaml", "No such file"):
        read_file(tmp_path / "none.yaml")
    with raises_problem(SpecError, "cannot-read", r"a\u0000b.yaml"):
        read_file(Path("a\0b.yaml"))


def test_invalid_unicode_is_refused() -> None:
    with raises_problem(SpecError, "not-text", "override 1:1:1", "0xed"):
        read_yaml("\udcff", "override 1", lines=False)


def test_python_values_are_copied() -> None:
    inner: dict[str, Any] = {"b": [1, 2.5, None, True, "x"], "t": (1, 2)}
    tree = plain_tree({"a": inner})
    assert tree.data == {"a": {"b": [1, 2.5, None, True, "x"], "t": [1, 2]}}
    inner["b"].append(3)
    assert tree.data["a"]["b"] == [1, 2.5, None, True, "x"]


def test_a_value_that_is_not_plain_is_refused() -> None:
    tree = plain_tree({"a": object(), "b": {1: 2}, "c": {"d": {1, 2}}})
    assert [str(problem) for problem in tree.problems] == [
        "error[unsupported-value] a (spec): expected a plain value, got a object; valid: mappings, lists, text, "
        "numbers, true, false, null",
        "error[unsupported-value] b (spec): expected text as a key, got the int 1; "
        "valid: mappings, lists, text, numbers, true, false, null",
        "error[unsupported-value] c.d (spec): expected a plain value, got a set; valid: mappings, lists, text, "
        "numbers, true, false, null",
    ]


def test_recursive_and_huge_mappings_are_refused() -> None:
    itself: dict[str, Any] = {}
    itself["a"] = itself
    with raises_problem(SpecError, "too-deep", "64"):
        plain_tree(itself)
    with raises_problem(SpecError, "too-large", "100,000"):
        plain_tree({"a": [0] * (NODES + 1)})


@pytest.mark.parametrize(
    "text",
    [
        "base: encoder-tiny\n seeds: 3\n",
        "base:\n  preset: gpt-tiny\n dims: 3\n",
        "vary:\n  attention: [mqa]\n    norm: [rmsnorm]\n",
        "  base: encoder-tiny\nseeds: 3\n",
        "list:\n  - x: 1\n   y: 2\n",
        "vary:\n\tattention: [mqa]\n",
    ],
)
def test_a_wrong_indent_is_reported_as_one(text: str) -> None:
    with pytest.raises(SpecError, match="indent"):
        read_yaml(text, "s.yaml")


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
