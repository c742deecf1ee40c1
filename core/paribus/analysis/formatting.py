"""Numbers and names as text: significant digits, units, percentages, and no control characters."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Final

from paribus.errors import escape_unprintable

NO_VALUE: Final = "-"
TIMES: Final = "\N{MULTIPLICATION SIGN}"
MAX_DECIMALS: Final = 6  # a number that needs more is written with an exponent
LARGE: Final = 1e7


def clean(text: str) -> str:
    """Return the text as one line without control characters, which a terminal would obey."""
    return escape_unprintable(text).replace("\n", "\\n")


def span(numbers: Sequence[Any]) -> str:
    """`5`, or `3 to 5`."""
    if not numbers:
        return "0"
    low, high = min(numbers), max(numbers)
    return f"{low:,}" if low == high else f"{low:,} to {high:,}"


def percent(share: float) -> str:
    """`95 %`, `98.75 %`."""
    return f"{100 * share:.2f}".rstrip("0").rstrip(".") + " %"


def plural(count: int, word: str) -> str:
    return f"{count} {word}" if count == 1 else f"{count} {word}s"


def decimals_of(size: float | None) -> int:
    """Return the number of decimals that shows two significant digits of `size`."""
    return 1 - math.floor(math.log10(abs(size))) if size else 1


def format_number(value: float | None, decimals: int, *, signed: bool = False) -> str:
    """`2.153`, `+0.031`, `-1.2e-08`."""
    if value is None:
        return NO_VALUE
    sign = "+" if signed else ""
    if decimals > MAX_DECIMALS or abs(value) >= LARGE:
        return f"{value:{sign}.2e}" if signed else f"{value:.4g}"
    return f"{value:{sign},.{max(decimals, 0)}f}"


def compact(value: float, step: int, units: str) -> str:
    """`36.3k`, `434M`: three digits and a unit."""
    index = 0
    while abs(value) >= 0.9995 * step and index < len(units) - 1:
        value, index = value / step, index + 1
    return f"{value:.3g}{units[index]}".strip()
