"""Words and figures that any part of a report says, and names as text that cannot drive a terminal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from paribus.errors import printable


def clean(text: str) -> str:
    """One line, with nothing in it that a terminal would obey."""
    return printable(text).replace("\n", "\\n")


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
