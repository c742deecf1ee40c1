"""Chart of the power laws of a study over its scales: the line of each variant, its interval, and the losses."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import altair as alt

from paribus.analysis.formatting import clean, percent
from paribus.analysis.scaling_laws import SIZE, Line, law_interval
from paribus.analysis.table import Table
from paribus.report.charts import HEIGHT, Figure, color_scale, hide_variants, layered, rounded

SECTION: Final = "scaling"  # key of the section of power laws
STEPS: Final = 24  # of a line on logarithmic axes: the ends of its interval are curves


def scaling_laws(table: Table) -> Sequence[Mapping[str, Any]]:
    """Return the power laws of a table as in its JSON; none if it has no section of them."""
    section = next((section for section in table.sections if section.key == SECTION), None)
    laws: Sequence[Mapping[str, Any]] = section.document["laws"] if section is not None else ()
    return laws


def law_lines(law: Mapping[str, Any], alpha: float) -> Iterator[tuple[float, float, float | None, float | None]]:
    """Yield parameters, loss, and the ends of its interval along the line of a law, within the measured range."""
    lines = [Line(line["exponent"], line["log_factor"]) for line in law["lines"]]
    smallest, largest = math.log(law["smallest"]), math.log(law["largest"])
    for step in range(STEPS + 1):
        size = math.exp(smallest + (largest - smallest) * step / STEPS)
        yield (size, *law_interval(lines, size, alpha))


def scaling_figure(table: Table) -> Figure | None:
    """Return the power laws of a study with three scales or more as lines on logarithmic axes."""
    laws = scaling_laws(table)
    if not laws:
        return None
    lines = [row for law in laws for row in _line_rows(law, table.alpha)]
    losses = [row for law in laws for row in _loss_rows(law)]
    values = [row for law in laws for row in _mean_rows(law, table.alpha)]
    title = f"{clean(table.metric)} over {SIZE}"
    return Figure(
        name="scaling",
        title=f"Power laws of {title}",
        description=f"{title}, both logarithmic. {'; '.join(map(_summary, laws))}.",
        chart=_chart(table, lines, losses, values),
        values=values,
        columns={
            "variant": "variant",
            SIZE: SIZE,
            "mean": table.metric,
            "fit": "power law",
            "low": "low",
            "high": "high",
            "n": "n",
        },
        note="A point is the mean of a scale, and a dot one seed. The line is the mean of the power laws of the seeds, "
        + _band_note(lines, table.alpha)
        + "It ends where the scales end: nothing is measured beyond.",
    )


def _chart(
    table: Table,
    lines: Sequence[Mapping[str, Any]],
    losses: Sequence[Mapping[str, Any]],
    means: Sequence[Mapping[str, Any]],
) -> alt.LayerChart:
    names = [clean(row.variant) for row in (table.baseline, *table.rows)]
    shown = list(dict.fromkeys(row["variant"] for row in lines))
    legend = alt.Legend(values=shown)
    x = alt.X(
        f"{SIZE}:Q",
        title=SIZE,
        scale=alt.Scale(type="log", nice=False, padding=12),
        axis=alt.Axis(format="~s", values=ticks([row[SIZE] for row in losses])),
    )
    scale = alt.Scale(type="log", nice=False, padding=10)
    y_values = [row[key] for row in (*lines, *losses) for key in ("loss", "low", "high") if row.get(key) is not None]
    axis = alt.Axis(format="~g", values=ticks(y_values))
    tooltip = ["variant:N", alt.Tooltip(f"{SIZE}:Q", format=".3s")]

    def base(rows: Sequence[Mapping[str, Any]]) -> alt.Chart:
        color = alt.Color("variant:N", scale=color_scale(names), legend=legend)
        return hide_variants(alt.Chart(alt.InlineData(values=list(rows)))).encode(x=x, color=color)

    def y_of(field: str) -> alt.Y:
        return alt.Y(f"{field}:Q", title=clean(table.metric), scale=scale, axis=axis)

    fitted = base(lines)
    band = fitted.transform_filter("isValid(datum.low)").mark_area(opacity=0.18).encode(y=y_of("low"), y2="high:Q")
    line = fitted.mark_line(strokeWidth=2).encode(
        y=y_of("loss"), tooltip=[*tooltip, alt.Tooltip("loss:Q", format=".4g")]
    )
    dots = base(losses).mark_circle(size=18, opacity=0.5).encode(y=y_of("loss"), tooltip=[*tooltip, "seed:O"])
    points = base(means).mark_point(filled=True, size=70, opacity=1)
    return layered(
        band,
        line,
        dots,
        points.encode(y=y_of("mean"), tooltip=[*tooltip, alt.Tooltip("mean:Q", format=".4g"), "n:Q"]),
        height=HEIGHT,
    )


def ticks(values: Sequence[float]) -> list[float]:
    """Return round numbers within the range of values, about five, for a logarithmic axis that may span little."""
    low, high = min(values), max(values)
    for steps in ((1,), (1, 3), (1, 2, 5), range(1, 10)):
        ticks = [
            step * 10.0**power
            for power in range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
            for step in steps
            if low <= step * 10.0**power <= high
        ]
        if len(ticks) >= 3:
            return ticks
    size = 10 ** math.floor(math.log10((high - low) / 4)) if high > low else 1.0
    size = next(size * factor for factor in (1, 2, 5, 10) if (high - low) / (size * factor) <= 6) if high > low else 1.0
    return [round(number * size, 12) for number in range(math.ceil(low / size), math.floor(high / size) + 1)]


def _line_rows(law: Mapping[str, Any], alpha: float) -> Iterator[dict[str, Any]]:
    for size, loss, low, high in law_lines(law, alpha):
        ends = {name: None if end is None else rounded(end) for name, end in (("low", low), ("high", high))}
        yield {"variant": clean(law["variant"]), SIZE: rounded(size), "loss": rounded(loss), **ends}


def _loss_rows(law: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    for point in law["points"]:
        for seed in point["losses"]:
            yield {"variant": clean(law["variant"]), SIZE: point[SIZE], **seed, "loss": rounded(seed["loss"])}


def _mean_rows(law: Mapping[str, Any], alpha: float) -> Iterator[dict[str, Any]]:
    lines = [Line(line["exponent"], line["log_factor"]) for line in law["lines"]]
    for point in law["points"]:
        losses = [seed["loss"] for seed in point["losses"]]
        fit, low, high = law_interval(lines, point[SIZE], alpha)
        yield {
            "variant": clean(law["variant"]),
            SIZE: point[SIZE],
            "mean": rounded(math.fsum(losses) / len(losses)),
            "fit": rounded(fit),
            "low": "" if low is None else rounded(low),
            "high": "" if high is None else rounded(high),
            "n": len(losses),
        }


def _band_note(lines: Sequence[Mapping[str, Any]], alpha: float) -> str:
    if all(row["low"] is None for row in lines):
        return "without an interval, which needs two seeds. "
    return f"in its {percent(1 - alpha)} t-interval over seeds. "


def _summary(law: Mapping[str, Any]) -> str:
    ends = "" if law["low"] is None else f" [{law['low']:.4f}, {law['high']:.4f}]"
    return f"{clean(law['variant'])}: exponent {law['exponent']:.4f}{ends}"
