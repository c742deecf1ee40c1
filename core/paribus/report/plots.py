"""The forest plot of a table as text."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import median
from typing import Final, final

from paribus.analysis.table import Row, Table

FAR: Final = 4.0  # an interval so many times wider than the median is cut, or it would hide all others
MIN_WIDTH: Final = 13  # a picture in fewer places shows nothing


@final
class Forest:
    """Draws rows on one scale: `●` the difference, `━` its interval, `│` zero, `┊` the margin, `◂ ▸` continued."""

    def __init__(self, table: Table, width: int) -> None:
        low, high = plot_range(table.rows, table.margin)
        self.width = width
        self.margin = table.margin
        self.low = low - (high - low) / (2 * width)
        self.high = high + (high - low) / (2 * width)

    def line(self, row: Row) -> str:
        """Return the line of one row, exactly `width` characters long."""
        places = [" "] * self.width
        for value, sign in self._marks():
            self._put(places, value, sign)
        if row.low is not None and row.high is not None:
            start, end = self._place(row.low), self._place(row.high)
            for place in range(max(start, 0), min(end, self.width - 1) + 1):
                places[place] = "━"
            if start < 0:
                places[0] = "◂"
            if end >= self.width:
                places[-1] = "▸"
            self._put(places, 0.0, "┿")
        if row.difference is not None:
            self._put(places, row.difference, "●" if row.low is not None else "○")
        return "".join(places)

    def _marks(self) -> Iterator[tuple[float, str]]:
        if self.margin is not None:
            yield -self.margin, "┊"
            yield self.margin, "┊"
        yield 0.0, "│"

    def _place(self, value: float) -> int:
        return int((value - self.low) // ((self.high - self.low) / self.width))

    def _put(self, places: list[str], value: float, sign: str) -> None:
        place = self._place(value)
        if 0 <= place < self.width and (sign != "┿" or places[place] == "━"):
            places[place] = sign


def plot_range(rows: Sequence[Row], margin: float | None) -> tuple[float, float]:
    """Return the range of the plot: 0, every difference, and most intervals."""
    intervals = [(row.low, row.high) for row in rows if row.low is not None and row.high is not None]
    halves = [high - low for low, high in intervals]
    reach = FAR / 2 * median(halves) if halves else 0.0
    values = [0.0, *(row.difference for row in rows if row.difference is not None)]
    for low, high in intervals:
        middle = (low + high) / 2
        values += [max(low, middle - reach), min(high, middle + reach)]
    if margin is not None and intervals:
        values += [-margin, margin]
    return (min(values), max(values)) if max(values) > min(values) else (-1.0, 1.0)
