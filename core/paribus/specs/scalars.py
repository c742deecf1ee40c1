"""One plain YAML scalar as a value, without the surprises: 010 is not 8, `no` is not false, 12:30 is not 750."""

from __future__ import annotations

import re
from typing import Any, Final, final

_NULL: Final = frozenset({"", "~", "null", "Null", "NULL"})
_BOOLEAN: Final = {
    text: value for word, value in (("true", True), ("false", False)) for text in (word, word.title(), word.upper())
}
_NORWAY: Final = {
    text: value
    for words, value in ((("yes", "on"), True), (("no", "off"), False))
    for word in words
    for text in (word, word.title(), word.upper())
}
_WHOLE: Final = re.compile(r"[-+]?(0|[1-9][0-9]*)")
_NUMBER: Final = re.compile(r"[-+]?(([0-9]+\.[0-9]*|\.[0-9]+)([eE][-+]?[0-9]+)?|[0-9]+[eE][-+]?[0-9]+)")
_INFINITE: Final = re.compile(r"([-+]?)\.(inf|Inf|INF)")
_NAN: Final = frozenset({".nan", ".NaN", ".NAN"})
_SEXAGESIMAL: Final = re.compile(r"[-+]?[0-9][0-9_]*(:[0-5]?[0-9])+(\.[0-9_]*)?")
_GROUPED: Final = re.compile(r"[-+]?[0-9][0-9_]*(\.[0-9_]*)?([eE][-+]?[0-9]+)?")
_BASES: Final = {"0x": 16, "0b": 2, "0o": 8}
_DIGITS: Final = 20  # more than any size, step or seed has


@final
class MisreadError(ValueError):
    """A spelling that YAML reads as something else than it looks like."""


def scalar(text: str) -> Any:  # noqa: PLR0911  # one answer for each of the kinds that there are
    """The value of a plain scalar: null, true, false, a plain decimal number, or text."""
    if text in _NULL:
        return None
    if text in _BOOLEAN:
        return _BOOLEAN[text]
    if text in _NORWAY:
        read = "true" if _NORWAY[text] else "false"
        raise MisreadError(f"YAML read `{text}` as a boolean ({read}); quote it if text is meant, else write {read}")
    if _WHOLE.fullmatch(text):
        if len(text) > _DIGITS:
            raise MisreadError(f"a number of {len(text)} digits is more than anything here can be")
        return int(text)
    if _NUMBER.fullmatch(text):
        return float(text)
    if found := _INFINITE.fullmatch(text):
        return float(f"{found[1]}inf")
    if text in _NAN:
        return float("nan")
    if (number := _other(text)) is not None:
        raise MisreadError(f"`{text}` would be read as {number}; write a plain decimal number, or quote it")
    return text


def _octal(text: str) -> int | None:
    digits = text.lstrip("+-")
    octal = len(digits) > 1 and digits[0] == "0" and re.fullmatch("[0-7_]+", digits)
    return int(digits.replace("_", ""), 8) if octal and digits.strip("_0") else None


def _other(text: str) -> float | int | None:
    """What YAML 1.1 or 1.2 makes of a number that is no plain decimal."""
    sign = -1 if text.startswith("-") else 1
    digits = text.lstrip("+-").replace("_", "")
    if (octal := _octal(text)) is not None:
        return sign * octal
    base = _BASES.get(digits[:2].lower())
    if base is not None:
        try:
            return sign * int(digits[2:], base)
        except ValueError:
            return None
    if _SEXAGESIMAL.fullmatch(text):
        total = 0.0
        for part in digits.split(":"):
            total = total * 60 + float(part)
        return sign * (int(total) if total.is_integer() else total)
    if _GROUPED.fullmatch(text) and digits:
        return sign * (float(digits) if re.search("[.eE]", digits) else int(digits))
    return None
