"""Plots of a study: the forest plot of differences as text and as SVG, and learning curves as SVG."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from html import escape
from statistics import median
from typing import Any, Final, final

from paribus.analysis.formatting import clean
from paribus.analysis.table import Row, Table
from paribus.analysis.trials import TrialEntry

FAR: Final = 4.0  # an interval so many times wider than the median is cut, or it would hide all others
MIN_WIDTH: Final = 13  # a picture in fewer places shows nothing
WIDTH: Final = 760
LEFT: Final = 250  # of names
LINE: Final = 24
TALL: Final = 320  # of learning curves
COLORS: Final = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#7f3c8d", "#5f6b6d")
LONGEST: Final = 34  # letters of a name
MOST: Final = 400  # points of one curve
FEW: Final = 100  # steps, of which a quarter is said as it is


@final
class Forest:
    """Draws rows on one scale: `●` the difference, `━` its interval, `│` zero, `┊` the margin, `◂ ▸` continued."""

    def __init__(self, table: Table, width: int) -> None:
        low, high = plot_range(table)
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


def plot_range(table: Table) -> tuple[float, float]:
    """Return the range of the plot: 0, every difference, and most intervals."""
    rows = [row for row in table.rows if row.low is not None and row.high is not None]
    halves = [(row.high or 0) - (row.low or 0) for row in rows]
    reach = FAR / 2 * median(halves) if halves else 0.0
    values = [0.0, *(row.difference for row in table.rows if row.difference is not None)]
    for row in rows:
        middle = row.difference or 0.0
        values += [max(row.low or 0.0, middle - reach), min(row.high or 0.0, middle + reach)]
    if table.margin is not None:
        values += [-table.margin, table.margin] if rows else []
    return (min(values), max(values)) if max(values) > min(values) else (-1.0, 1.0)


def forest_svg(table: Table) -> str:
    """Return a plot of each difference with its interval, beside 0 and the margin; a cut interval ends in an arrow."""
    low, high = plot_range(table)
    room = (high - low) * 0.04

    def x(value: float) -> float:
        return LEFT + (WIDTH - LEFT - 10) * (value - low + room) / (high - low + 2 * room)

    height = LINE * (len(table.rows) + 2)
    lines = [_opening(height, f"differences in {table.metric} with their intervals")]
    if table.margin is not None and any(row.low is not None for row in table.rows):
        left, right = max(x(-table.margin), LEFT), min(x(table.margin), WIDTH)
        lines.append(f'<rect x="{left:.1f}" y="0" width="{right - left:.1f}" height="{height - LINE}" class="margin"/>')
    lines.append(f'<line x1="{x(0):.1f}" y1="0" x2="{x(0):.1f}" y2="{height - LINE}" class="axis"/>')
    for index, row in enumerate(table.rows):
        lines += _interval(row, LINE * (index + 0.9), x)
    for value in (low, 0.0, high):
        lines.append(_text(x(value), height - 6, f"{value:+.3g}" if value else "0", anchor="middle", name="tick"))
    return "\n".join([*lines, "</svg>"])


def _interval(row: Row, y: float, x: Any) -> Iterator[str]:
    yield _text(0, y + 4, _short(row.variant))
    if row.low is not None and row.high is not None:
        start, end = max(x(row.low), LEFT), min(x(row.high), WIDTH - 4.0)
        yield f'<line x1="{start:.1f}" y1="{y:.1f}" x2="{end:.1f}" y2="{y:.1f}" class="interval {row.kind}"/>'
        if x(row.low) < LEFT:
            yield _text(LEFT - 2, y + 4, "◂", anchor="middle")
        if x(row.high) > WIDTH - 4:
            yield _text(WIDTH - 4, y + 4, "▸", anchor="middle")
    if row.difference is not None and LEFT <= x(row.difference) <= WIDTH:
        hollow = " hollow" if row.low is None else ""
        yield f'<circle cx="{x(row.difference):.1f}" cy="{y:.1f}" r="4" class="{row.kind}{hollow}"/>'
    else:
        yield _text(x(0) + 8, y + 4, _short(row.verdict), name="tick")


def curve_points(entries: Iterable[TrialEntry]) -> list[dict[str, Any]]:
    """Return the evaluations of each trial; those of the trial that it began from belong to another stage."""
    return [
        {"variant": entry.variant, "identity": entry.identity, **point}
        for entry in entries
        for point in entry.result.get("curve") or ()
    ]


def curves_svg(points: Sequence[Mapping[str, Any]], metric: str, names: Sequence[str]) -> str:
    """Return a plot of the metric of every trial by step: a colour for each variant, a line for each seed."""
    lines_by_trial: dict[tuple[str, Any], list[tuple[float, float]]] = {}
    for point in points:
        value = point.get(metric)
        if isinstance(value, int | float) and math.isfinite(value) and point["variant"] in names:
            lines_by_trial.setdefault((str(point["variant"]), point["identity"]), []).append(
                (float(point["step"]), float(value))
            )
    every = [pair for line in lines_by_trial.values() for pair in line]
    if not any(len(line) > 1 for line in lines_by_trial.values()):
        return ""
    steps, values = [pair[0] for pair in every], [pair[1] for pair in every]
    low, high = min(values), max(values)
    spread, last_step = (high - low) or 1.0, max(steps)

    def place(pair: tuple[float, float]) -> str:
        return f"{60 + (WIDTH - 80) * pair[0] / last_step:.1f},{10 + (TALL - 50) * (high - pair[1]) / spread:.1f}"

    lines = [_opening(TALL + 20 * len(names), f"{metric} by step, a line a trial")]
    for share in (0, 0.25, 0.5, 0.75, 1):
        y = 10 + (TALL - 50) * share
        lines.append(f'<line x1="60" y1="{y:.1f}" x2="{WIDTH - 20}" y2="{y:.1f}" class="grid"/>')
        lines.append(_text(54, y + 4, f"{high - spread * share:.4g}", anchor="end", name="tick"))
        x = 60 + (WIDTH - 80) * share
        lines.append(_text(x, TALL - 22, _step(last_step * share), anchor="middle", name="tick"))
    colors = {name: COLORS[index % len(COLORS)] for index, name in enumerate(names)}
    for (name, _), line in lines_by_trial.items():
        points_text = " ".join(place(pair) for pair in sorted(line)[:: max(1, len(line) // MOST)])
        lines.append(f'<polyline points="{points_text}" stroke="{colors[name]}" class="curve"/>')
    for index, name in enumerate(names):
        y = TALL + 20 * index
        lines.append(f'<line x1="60" y1="{y}" x2="84" y2="{y}" stroke="{colors[name]}" stroke-width="3"/>')
        lines.append(_text(92, y + 4, clean(name)))
    return "\n".join([*lines, "</svg>"])


def _opening(height: float, label: str) -> str:
    size = f'viewBox="0 0 {WIDTH} {height:.0f}" width="{WIDTH}" height="{height:.0f}"'
    return f'<svg {size} role="img" aria-label="{escape(clean(label), quote=True)}">'


def _text(x: float, y: float, text: str, *, anchor: str = "start", name: str = "name") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" class="{name}">{escape(text)}</text>'


def _step(value: float) -> str:
    """`2.5`, `2,500`."""
    return f"{value:.2f}".rstrip("0").rstrip(".") if value < FEW else f"{value:,.0f}"


def _short(text: str) -> str:
    cleaned = clean(text)
    return cleaned if len(cleaned) <= LONGEST else f"{cleaned[: LONGEST - 1]}…"
