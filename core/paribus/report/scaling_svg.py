"""The power laws of a study as a picture for a notebook, which draws no scripts."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from html import escape
from typing import Final, NamedTuple, final

from paribus.analysis.formatting import clean, compact
from paribus.analysis.scaling_laws import SIZE
from paribus.analysis.table import Table
from paribus.report.charts import COLORS
from paribus.report.scaling_charts import law_lines, scaling_laws, ticks

WIDTH: Final = 420  # pixels
HEIGHT: Final = 240
LEFT: Final = 60
BOTTOM: Final = 40
LEGEND: Final = 18  # a line of the legend


@final
class _Axes(NamedTuple):
    """Places of numbers on two logarithmic axes, with a small border."""

    sizes: Sequence[float]
    losses: Sequence[float]

    def x(self, size: float) -> float:
        return round(LEFT + 8 + (WIDTH - LEFT - 16) * _share(size, self.sizes), 1)

    def y(self, loss: float) -> float:
        return round(HEIGHT - BOTTOM - 8 - (HEIGHT - BOTTOM - 16) * _share(loss, self.losses), 1)


def _share(value: float, values: Sequence[float]) -> float:
    low, high = math.log(min(values)), math.log(max(values))
    return (math.log(value) - low) / (high - low) if high > low else 0.5


def scaling_svg(table: Table) -> str:
    """Return the lines of the power laws with their intervals and the losses of all seeds; empty if there are none."""
    laws = scaling_laws(table)
    if not laws:
        return ""
    curves = {law["variant"]: list(law_lines(law, table.alpha)) for law in laws}
    points = {
        law["variant"]: [(point[SIZE], seed["loss"]) for point in law["points"] for seed in point["losses"]]
        for law in laws
    }
    ends = [value for curve in curves.values() for _, *values in curve for value in values if value is not None]
    measured = [point for some in points.values() for point in some]
    axes = _Axes([size for size, _ in measured], [*ends, *(loss for _, loss in measured)])
    names = [row.variant for row in (table.baseline, *table.rows)]
    marks = list(_frame(axes, clean(table.metric)))
    for place, law in enumerate(laws):
        name, color = law["variant"], COLORS[names.index(law["variant"]) % len(COLORS)]
        marks += _law(axes, curves[name], points[name], color)
        y = HEIGHT + LEGEND * (place + 0.7)
        text = f"{clean(name)}: exponent {law['exponent']:.4f}"
        marks.append(f'<circle cx="{LEFT + 8}" cy="{y - 4}" r="5" fill="{color}"/>{_text(text, LEFT + 20, y, "start")}')
    height = HEIGHT + LEGEND * (len(laws) + 0.5)
    label = escape(f"power laws of {clean(table.metric)} over {SIZE}", quote=True)
    size = f'width="{WIDTH}" height="{height:g}" viewBox="0 0 {WIDTH} {height:g}"'
    return f'<svg {size} role="img" aria-label="{label}">{"".join(marks)}</svg>'


def _law(
    axes: _Axes,
    curve: Sequence[tuple[float, float, float | None, float | None]],
    points: Sequence[tuple[float, float]],
    color: str,
) -> Iterator[str]:
    lows = [(size, low) for size, _, low, _ in curve if low is not None]
    highs = [(size, high) for size, _, _, high in curve if high is not None]
    if lows:
        yield f'<polygon points="{_path(axes, [*lows, *reversed(highs)])}" fill="{color}" opacity="0.18"/>'
    line = _path(axes, [(size, loss) for size, loss, *_ in curve])
    yield f'<polyline points="{line}" fill="none" stroke="{color}" stroke-width="2"/>'
    yield from (f'<circle cx="{axes.x(size)}" cy="{axes.y(loss)}" r="2.5" fill="{color}"/>' for size, loss in points)


def _frame(axes: _Axes, metric: str) -> Iterator[str]:
    base = HEIGHT - BOTTOM
    yield f'<path d="M{LEFT} 4V{base}H{WIDTH}" fill="none" stroke="gray"/>'
    for size in ticks(axes.sizes):
        yield f'<path d="M{axes.x(size)} 4V{base + 4}" stroke="gray" opacity="0.3"/>'
        yield _text(compact(size, 1000, " kMGT"), axes.x(size), base + 16, "middle")
    for loss in ticks(axes.losses):
        yield f'<path d="M{LEFT - 4} {axes.y(loss)}H{WIDTH}" stroke="gray" opacity="0.3"/>'
        yield _text(f"{loss:g}", LEFT - 7, axes.y(loss) + 4, "end")
    yield _text(SIZE, (LEFT + WIDTH) / 2, base + 33, "middle")
    middle = base / 2
    yield _text(metric, 12, middle, "middle", f' transform="rotate(-90 12 {middle:g})"')


def _path(axes: _Axes, points: Sequence[tuple[float, float]]) -> str:
    return " ".join(f"{axes.x(size)},{axes.y(loss)}" for size, loss in points)


def _text(text: str, x: float, y: float, anchor: str, more: str = "") -> str:
    place = f'x="{x:g}" y="{y:g}" text-anchor="{anchor}"'
    return f'<text {place} font-size="11" fill="currentColor"{more}>{escape(text)}</text>'
