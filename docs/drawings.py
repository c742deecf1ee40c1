"""Small SVG drawings for the documentation site: heatmaps and curves.

They are part of the page, with classes in place of colours, so that docs/site.css sets the colours of both themes.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import groupby

LEVELS = 8  # shades of a sign
CELL = 6  # pixels of a cell of a heatmap
Matrix = Sequence[Sequence[float]]


def heatmap(matrix: Matrix, title: str) -> str:
    """Return a heatmap; the shade of a cell is its magnitude, relative to the largest one."""
    largest = max((abs(value) for row in matrix for value in row), default=0.0) or 1.0
    paths: defaultdict[int, list[str]] = defaultdict(list)
    for y, row in enumerate(matrix):
        for level, x, length in _runs([_level(value / largest) for value in row]):
            paths[level].append(f"M{x} {y}h{length}v1h-{length}z")
    width, height = len(matrix[0]), len(matrix)
    cells = "".join(
        f'<path class="{"positive" if level > 0 else "negative"}" opacity="{abs(level) / LEVELS:g}" d="{d}"/>'
        for level, d in sorted((level, "".join(runs)) for level, runs in paths.items())
    )
    ground = f'<rect class="ground" width="{width}" height="{height}"/>'
    return _svg(title, width, height, ground + cells, scale=CELL, extra=' shape-rendering="crispEdges"')


def curve(points: Sequence[tuple[float, float]], title: str, label: str, size: tuple[int, int] = (320, 140)) -> str:
    """Return a curve with the ranges of its axes; `label` is the name of the x-axis, and `size` that of its area."""
    width, height = size
    xs, ys = zip(*points, strict=True)
    low, high = min(0.0, *ys), max(ys)
    left, right = min(xs), max(xs)

    def place(x: float, y: float) -> str:
        return f"{40 + (x - left) / (right - left) * width:.1f},{10 + (high - y) / ((high - low) or 1) * height:.1f}"

    bottom = place(left, low).partition(",")[2]
    line = f'<polyline class="curve" points="{" ".join(place(*point) for point in points)}"/>'
    axes = f'<path class="axis" d="M40 10V{height + 10}M40 {place(left, 0).partition(",")[2]}h{width}"/>'
    texts = [
        _text(34, 14, f"{high:.3g}", "end"),
        _text(34, float(bottom) + 4, f"{low:.3g}", "end"),
        _text(40, height + 28, f"{left:g}", "start"),
        _text(40 + width, height + 28, f"{right:g}", "end"),
        _text(40 + width / 2, height + 28, label, "middle"),
    ]
    return _svg(title, width + 50, height + 36, axes + line + "".join(texts))


def figure(drawings: Sequence[tuple[str, str]], caption: str) -> str:
    """Return drawings side by side, each with its name below it, and one caption."""
    parts = "".join(f'<div class="drawing">{svg}<small>{name}</small></div>' for svg, name in drawings)
    return f'<figure class="drawings"><div>{parts}</div><figcaption>{caption}</figcaption></figure>\n'


def _level(share: float) -> int:
    """Return the shade of a share of the largest value; every value but 0 has one."""
    return 0 if share == 0 else (1 if share > 0 else -1) * max(1, round(abs(share) * LEVELS))


def _runs(levels: Sequence[int]) -> Iterator[tuple[int, int, int]]:
    """Yield the level, the start and the length of each run of equal levels, except for level 0."""
    start = 0
    for level, group in groupby(levels):
        length = len(list(group))
        if level:
            yield level, start, length
        start += length


def _svg(title: str, width: int, height: int, content: str, scale: int = 1, extra: str = "") -> str:
    return (
        f'<svg role="img" aria-label="{title}" viewBox="0 0 {width} {height}" width="{width * scale}" '
        f'height="{height * scale}"{extra}><title>{title}</title>{content}</svg>'
    )


def _text(x: float, y: float, text: str, anchor: str) -> str:
    return f'<text x="{x:g}" y="{y:g}" text-anchor="{anchor}">{text}</text>'
