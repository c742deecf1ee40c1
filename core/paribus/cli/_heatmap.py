"""Heatmaps in the terminal: darker cells for larger numbers, with labels for rows and columns."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator, Sequence
from typing import Final

from paribus.cli.console import columns as terminal
from paribus.errors import escape_unprintable

SHADES: Final = " ░▒▓█"
PLAIN: Final = " .:*#"  # for a terminal without block characters
_WIDEST: Final = 80  # columns, where the output is not a terminal
_ROOM: Final = 12  # characters of a row label
_HEIGHT: Final = 8  # characters of a column label, which is written vertically
_CELL: Final = 2  # characters of a cell: a character is twice as high as wide


def heatmap_lines(
    weights: Sequence[Sequence[float]], rows: Sequence[str], columns: Sequence[str], width: int | None = None
) -> Iterator[str]:
    """Format a (T, S) matrix as lines of at most `width` characters, in pages of columns."""
    width = min(terminal(), _WIDEST) if width is None else width
    row_labels, column_labels = [_label(row, _ROOM) for row in rows], [_label(column, _HEIGHT) for column in columns]
    margin = max(map(len, row_labels))
    columns_per_page = max(1, (width - margin - 1) // _CELL)
    maximum = max(max(row) for row in weights)
    pages = range(0, len(columns), columns_per_page)
    shades = _shades()
    for number, start in enumerate(pages, start=1):
        page = slice(start, start + columns_per_page)
        if len(pages) > 1:
            end = min(start + columns_per_page, len(columns))
            yield f"columns {start + 1} to {end} of {len(columns)} (page {number} of {len(pages)})"
        yield from _heads(column_labels[page], margin)
        for label, row in zip(row_labels, weights, strict=True):
            cells = "".join(_shade(weight, maximum, shades) * _CELL for weight in row[page])
            yield f"{label:>{margin}} {cells}".rstrip()
    legend = (f"{shades[step]} {maximum * ((step - 0.5) / 4) ** 2:.2g}" for step in range(1, len(shades)))
    yield f"{'':>{margin}} from {', '.join(legend)}; maximum {maximum:.2g}"


def _heads(labels: Sequence[str], margin: int) -> Iterator[str]:
    """Yield the column labels, written vertically and aligned at the bottom."""
    height = max(map(len, labels))
    padded = [label.rjust(height) for label in labels]
    for line in range(height):
        yield (" " * (margin + 1) + "".join(f"{label[line]:<{_CELL}}" for label in padded)).rstrip()


def _label(text: str, room: int) -> str:
    """Format a token as a label with visible white space."""
    label = escape_unprintable(text.replace("\n", "↵")).replace(" ", "·") or "∅"
    return label if len(label) <= room else f"{label[: room - 1]}…"


def _shade(weight: float, maximum: float, shades: str) -> str:
    """Return one of five shades by the square root of the share of the maximum, so that small weights are visible."""
    return shades[int(4 * math.sqrt(weight / maximum) + 0.5)] if maximum > 0 and weight > 0 else shades[0]


def _shades() -> str:
    try:
        SHADES.encode(getattr(sys.stdout, "encoding", None) or "ascii")
    except UnicodeEncodeError:
        return PLAIN
    return SHADES
