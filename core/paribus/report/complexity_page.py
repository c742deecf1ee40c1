"""HTML page of the complexity of attentions: time, memory and FLOPs over n and d on logarithmic axes, and tables."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from html import escape
from typing import Any, Final

import altair as alt

from paribus.analysis.formatting import clean
from paribus.complexity.lab import Complexity, Profile
from paribus.report.charts import COLORS, HEIGHT, Figure, hide_variants, layered, rounded
from paribus.report.complexity_views import complexity_grid, form_grid, growth_grid, records
from paribus.report.html import Section, sections_page

DASHES: Final = ((1, 0), (6, 3), (2, 2))  # line style, for the first, second and third use of each colour
QUANTITIES: Final[Mapping[str, tuple[str, str, float]]] = {  # quantity -> title of the axis, number format, unit
    "seconds": ("time of a pass in ms", "~g", 1e-3),
    "memory_bytes": ("memory of a pass in MiB", "~g", 2**20),
    "flops": ("FLOPs of a forward pass", "~s", 1),
}
AXES: Final[Mapping[str, str]] = {"n": "length n", "d": "width d"}
Style = tuple[str, Sequence[int]]  # (colour, dashes)


def complexity_page(result: Complexity, about: Sequence[str]) -> str:
    """Return the page; `about` lists the machine and the command."""
    initial = initially_shown(result.profiles)
    series = {clean(name): (_mark(style), name in initial) for name, style in styles(result.profiles).items()}
    overview, growth, forms = complexity_grid(result), growth_grid(result), form_grid(result)
    notes = ["At first, one attention of each closed form is drawn; the boxes add the others."]
    return sections_page(
        overview.title,
        series,
        [
            Section("Complexity", grid=overview, lines=[*overview.header, *_lines(overview.remarks)]),
            Section("Growth with length and width", list(figures(result)), lines=notes * (len(initial) < len(series))),
            Section(growth.title, grid=growth, lines=[*growth.header, *_lines(growth.remarks)]),
            Section(forms.title, grid=forms, lines=_lines(forms.remarks)),
            Section("Provenance", lines=about),
        ],
    )


def _lines(remarks: Sequence[tuple[str, Sequence[str]]]) -> list[str]:
    return [line for _, lines in remarks for line in lines]


def initially_shown(profiles: Sequence[Profile]) -> set[str]:
    """Return the attentions that are shown initially: all if there are enough colours, else one of each closed form."""
    if len(profiles) <= len(COLORS):
        return {profile.label for profile in profiles}
    by_form: dict[str, str] = {}
    for profile in profiles:
        if profile.form.order not in ("", "0"):
            by_form.setdefault(profile.form.order, profile.label)
    return set(list(by_form.values())[: len(COLORS)])


def styles(profiles: Sequence[Profile]) -> dict[str, Style]:
    """Return a colour and dashes for each attention; those that are shown initially have solid lines."""
    initial = initially_shown(profiles)
    ordered = sorted((profile.label for profile in profiles), key=lambda label: label not in initial)
    count = len(COLORS)
    style_by_label = {
        label: (COLORS[index % count], DASHES[index // count % len(DASHES)]) for index, label in enumerate(ordered)
    }
    return {profile.label: style_by_label[profile.label] for profile in profiles}


def _mark(style: Style) -> str:
    """Return a short line in the style of a series, as SVG."""
    color, dashes = style
    line = f'<line x1="0" y1="5" x2="24" y2="5" stroke="{escape(color)}" stroke-width="2.5"'
    return f'<svg width="24" height="10" aria-hidden="true">{line} stroke-dasharray="{dashes[0]} {dashes[1]}"/></svg>'


def figures(result: Complexity) -> Iterator[Figure]:
    """Yield a chart of each quantity over n, then over d."""
    settings, rows = result.settings, list(records(result))
    sizes = {"n": settings.reference.width, "d": settings.reference.length}
    for axis, fixed_axis in (("n", "d"), ("d", "n")):
        for quantity in QUANTITIES:
            values = list(_values([row for row in rows if row[fixed_axis] == sizes[axis]], axis, quantity))
            if len({value["size"] for value in values}) > 1:
                yield _figure(result, axis, quantity, values, f"{fixed_axis} = {sizes[axis]}")


def _values(rows: Sequence[Mapping[str, Any]], axis: str, quantity: str) -> Iterator[dict[str, Any]]:
    unit = QUANTITIES[quantity][2]
    for row in rows:
        # A logarithmic axis has no zero.
        if row[quantity]:
            low, high = row.get(f"{quantity}_low") or row[quantity], row.get(f"{quantity}_high") or row[quantity]
            ends = {"value": row[quantity], "low": low, "high": high}
            yield {
                "variant": clean(row["attention"]),
                "size": row[axis],
                **{key: rounded(number / unit) for key, number in ends.items()},
            }


def _figure(result: Complexity, axis: str, quantity: str, values: list[dict[str, Any]], fixed: str) -> Figure:
    title, number_format, _ = QUANTITIES[quantity]
    ticks = sorted({value["size"] for value in values})
    style_by_label = styles(result.profiles)
    names = [clean(label) for label in style_by_label]
    logarithmic = alt.Scale(type="log", nice=False)
    x_scale = alt.Scale(type="log", base=2, nice=False, domain=[ticks[0], ticks[-1]])
    base = hide_variants(alt.Chart(alt.InlineData(values=values))).encode(
        x=alt.X("size:Q", title=AXES[axis], scale=x_scale, axis=alt.Axis(values=ticks, format="d")),
        color=alt.Color(
            "variant:N",
            scale=alt.Scale(domain=names, range=[color for color, _ in style_by_label.values()]),
            legend=None,
        ),
    )
    dash = alt.StrokeDash(
        "variant:N",
        scale=alt.Scale(domain=names, range=[list(dashes) for _, dashes in style_by_label.values()]),
        legend=None,
    )
    y = alt.Y("value:Q", title=title, scale=logarithmic, axis=alt.Axis(format=number_format, tickCount=5))
    tooltip = ["variant:N", alt.Tooltip("size:Q", title=axis), alt.Tooltip("value:Q", title=title, format=".4~s")]
    band = base.mark_area(opacity=0.15).encode(y=alt.Y("low:Q", scale=logarithmic), y2="high:Q")
    line = base.mark_line(strokeWidth=2).encode(y=y, strokeDash=dash, tooltip=tooltip)
    points = base.mark_point(filled=True, size=35, opacity=1).encode(y=y, tooltip=tooltip)
    layers = (band, line, points) if quantity == "seconds" else (line, points)
    return Figure(
        name=f"{quantity}-by-{axis}".replace("_", "-"),
        title=f"{title} by {AXES[axis]}",
        description=f"{title} of each attention against {AXES[axis]} on logarithmic axes, at {fixed}.",
        chart=layered(*layers, height=HEIGHT),
        values=values,
        columns={"variant": "attention", "size": axis, "value": title, "low": "low", "high": "high"}
        if quantity == "seconds"
        else {"variant": "attention", "size": axis, "value": title},
        note=f"At {fixed}, on logarithmic axes." + (" Bands: 95 % intervals." if quantity == "seconds" else ""),
    )
