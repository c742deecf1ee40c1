"""The forest plot of a table as text."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import median
from typing import Final, final

from paribus.analysis.table import Row, Table

MAX_RELATIVE_WIDTH: Final = 4.0  # intervals are cut at this multiple of the median width, to keep others visible
MIN_WIDTH: Final = 13  # characters; a narrower plot shows nothing


@final
class Forest:
    """Plot of rows on one scale: `●` difference, `━` interval, `│` zero, `┊` margin, `◂ ▸` the interval continues."""

    def __init__(self, table: Table, width: int) -> None:
        low, high = plot_range(table.rows, table.margin)
        self.width = width
        self.margin = table.margin
        self.low = low - (high - low) / (2 * width)
        self.high = high + (high - low) / (2 * width)

    def line(self, row: Row) -> str:
        """Return the line of one row, exactly `width` characters long."""
        characters = [" "] * self.width
        for value, sign in self._reference_signs():
            self._put(characters, value, sign)
        if row.low is not None and row.high is not None:
            start, end = self._index(row.low), self._index(row.high)
            for index in range(max(start, 0), min(end, self.width - 1) + 1):
                characters[index] = "━"
            if start < 0:
                characters[0] = "◂"
            if end >= self.width:
                characters[-1] = "▸"
            self._put(characters, 0.0, "┿")
        if row.difference is not None:
            self._put(characters, row.difference, "●" if row.low is not None else "○")
        return "".join(characters)

    def _reference_signs(self) -> Iterator[tuple[float, str]]:
        if self.margin is not None:
            yield -self.margin, "┊"
            yield self.margin, "┊"
        yield 0.0, "│"

    def _index(self, value: float) -> int:
        return int((value - self.low) // ((self.high - self.low) / self.width))

    def _put(self, characters: list[str], value: float, sign: str) -> None:
        """Put a sign at a value; the sign of zero in an interval only replaces characters of the interval."""
        index = self._index(value)
        if 0 <= index < self.width and (sign != "┿" or characters[index] == "━"):
            characters[index] = sign


def plot_range(rows: Sequence[Row], margin: float | None) -> tuple[float, float]:
    """Return the range of the plot: 0, the margin, every difference, and intervals, of which wide ones are cut."""
    intervals = [(row.low, row.high) for row in rows if row.low is not None and row.high is not None]
    widths = [high - low for low, high in intervals]
    max_half_width = MAX_RELATIVE_WIDTH / 2 * median(widths) if widths else 0.0
    values = [0.0, *(row.difference for row in rows if row.difference is not None)]
    for low, high in intervals:
        center = (low + high) / 2
        values += [max(low, center - max_half_width), min(high, center + max_half_width)]
    if margin is not None and intervals:
        values += [-margin, margin]
    return (min(values), max(values)) if max(values) > min(values) else (-1.0, 1.0)
