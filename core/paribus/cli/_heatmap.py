"""Numbers as cells of a map, the darker the larger, with a label for each row and each column."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator, Sequence
from typing import Final

from paribus.cli.console import columns as terminal
from paribus.errors import escape_unprintable

SHADES: Final = " ░▒▓█"
PLAIN: Final = " .:*#"  # for a terminal that has no blocks
_WIDEST: Final = 80  # columns, where there is no terminal to ask
_ROOM: Final = 12  # letters of a row's label
_HEIGHT: Final = 8  # of a column's, which stands upright
_CELL: Final = 2  # columns of a cell: letters are twice as high as they are wide


def shaded(
    weights: Sequence[Sequence[float]], rows: Sequence[str], columns: Sequence[str], width: int | None = None
) -> Iterator[str]:
    """(T, S) as lines no wider than `width`, in as many pages of columns as that takes."""
    width = min(terminal(), _WIDEST) if width is None else width
    left, above = [_label(row, _ROOM) for row in rows], [_label(column, _HEIGHT) for column in columns]
    margin = max(map(len, left))
    fits = max(1, (width - margin - 1) // _CELL)
    most = max(max(row) for row in weights)
    pages = range(0, len(columns), fits)
    shades = _shades()
    for number, first in enumerate(pages, start=1):
        page = slice(first, first + fits)
        if len(pages) > 1:
            last = min(first + fits, len(columns))
            yield f"columns {first + 1} to {last} of {len(columns)} (page {number} of {len(pages)})"
        yield from _heads(above[page], margin)
        for label, row in zip(left, weights, strict=True):
            cells = "".join(_shade(weight, most, shades) * _CELL for weight in row[page])
            yield f"{label:>{margin}} {cells}".rstrip()
    legend = (f"{shades[step]} {most * ((step - 0.5) / 4) ** 2:.2g}" for step in range(1, len(shades)))
    yield f"{'':>{margin}} from {', '.join(legend)}; the most is {most:.2g}"


def _heads(labels: Sequence[str], margin: int) -> Iterator[str]:
    """Labels that stand upright over their columns, on one line at the foot."""
    height = max(map(len, labels))
    standing = [label.rjust(height) for label in labels]
    for line in range(height):
        yield (" " * (margin + 1) + "".join(f"{label[line]:<{_CELL}}" for label in standing)).rstrip()


def _label(text: str, room: int) -> str:
    """A token in so many letters, of which none is a space that nobody sees."""
    seen = escape_unprintable(text.replace("\n", "↵")).replace(" ", "·") or "∅"
    return seen if len(seen) <= room else f"{seen[: room - 1]}…"


def _shade(weight: float, most: float, shades: str) -> str:
    """One of five, by the root of its share of the most: a row that weighs many others can be seen beside one that
    weighs a single one."""
    return shades[int(4 * math.sqrt(weight / most) + 0.5)] if most > 0 and weight > 0 else shades[0]


def _shades() -> str:
    try:
        SHADES.encode(getattr(sys.stdout, "encoding", None) or "ascii")
    except UnicodeEncodeError:
        return PLAIN
    return SHADES
