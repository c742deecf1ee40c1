"""Charts of a study as Altair charts: one description for the HTML report, a notebook, and files."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import Any, Final, final

import altair as alt

from paribus.analysis.costs import LABELS
from paribus.analysis.formatting import clean
from paribus.analysis.p_values import t_quantile
from paribus.analysis.table import Row, Table
from paribus.analysis.trials import TrialEntry
from paribus.report.plots import plot_range

COLORS: Final = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#c98a00", "#3f9bd4", "#8f5ec8", "#7a8488")
VERDICT_COLORS: Final[Mapping[str, str]] = {
    "better": "#1a8f3f",
    "worse": "#d9432f",
    "equivalent": "#0a84b5",
    "identical": "#0a84b5",
    "inconclusive": "#7f8a92",
    "other": "#9a58c4",  # withheld, diverged, failed
}
SHAPES: Final = ("triangle-up", "triangle-down", "square", "diamond", "circle", "cross")
INK: Final = "currentColor"  # colour of lines and labels: in a page, that of its text
ROW_HEIGHT: Final = 44  # pixels of a row of a forest plot: a name above an interval
HEIGHT: Final = 260  # pixels of other charts
PADDING: Final = {"left": 5, "top": 5, "right": 16, "bottom": 5}  # the right has room for half of an axis label
HIDDEN: Final = "hidden"  # parameter of a page: the variants that its reader has hidden
SEED_TOOLTIP: Final = ("variant:N", "seed:O", "difference:Q")
X_OF_CURVES: Final[Mapping[str, str]] = {
    "step": "step",
    "tokens": "training tokens",
    "flops": "training FLOPs",
    "seconds": "training time in seconds",
}


@final
@dataclass(frozen=True, kw_only=True)
class Figure:
    """A chart with its name, title, description for screen readers, and numbers."""

    name: str  # name of its file, and of its element in a page
    title: str
    description: str
    chart: alt.Chart | alt.LayerChart
    values: Sequence[Mapping[str, Any]]
    columns: Mapping[str, str]  # key of `values` -> heading, for the columns of the table of numbers
    x_choices: Mapping[str, str] | None = None  # field -> title, for the fields that may be on the x-axis
    log_choice: bool = False  # the reader may make the y-axis logarithmic
    note: str = ""  # how to read the chart
    page_note: str = ""  # addition to `note` in a page, where a chart has controls
    print_note: str = ""  # addition to `note` in a file
    full: bool = False  # the chart has the whole width of a page
    choice: tuple[str, str] | None = None  # of figures that a page shows one at a time: what is chosen, and this one


def with_theme(chart: Any, *, ink: str = INK, font_size: int = 12) -> Any:
    """Return a chart with the colours and sizes of a page or a file."""
    text = {"labelColor": ink, "titleColor": ink, "labelFontSize": font_size, "titleFontSize": font_size}
    axis = {**text, "gridColor": ink, "gridOpacity": 0.13, "domainColor": ink, "tickColor": ink, "titleFontWeight": 500}
    legend = {**text, "orient": "bottom", "columns": 2, "labelLimit": 400, "symbolLimit": 60, "symbolOpacity": 1}
    return (
        chart.properties(autosize=alt.AutoSizeParams(type="fit-x", contains="padding"), padding=PADDING)
        .configure(background="transparent", font="system-ui, sans-serif")
        .configure_view(stroke=None)
        .configure_axis(**axis)
        # A label that the edge would cut is omitted.
        .configure_axisXQuantitative(labelBound=PADDING["right"] - 1)
        .configure_legend(**legend, title=None)
        .configure_title(color=ink, fontSize=font_size)
        .configure_text(color=ink, fontSize=font_size)
        .configure_header(labelColor=ink, titleColor=ink)
    )


def forest_chart(table: Table) -> alt.LayerChart:
    """Return a chart of each difference with its interval, beside zero and the margin."""
    return forest(table, table.rows, seed_values(table))


def forest_figure(table: Table) -> Figure:
    """Return the forest plot of a study with a description."""
    values = forest_values(table.rows)
    summary = "; ".join(f"{value['variant']}: {value['text']}, {value['verdict']}" for value in values)
    return Figure(
        name="differences",
        title="Differences from the baseline",
        description=f"Differences in {clean(table.metric)} with their intervals. {summary}",
        chart=forest_chart(table),
        values=values,
        columns={"variant": "variant", "text": "difference", "verdict": "verdict"},
        note="Variant minus baseline: the mean, its interval, and a dot for each seed."
        + (" The band is the margin: a difference within it is negligible." if table.margin is not None else ""),
        full=True,
    )


def seed_values(table: Table) -> list[dict[str, Any]]:
    """Return the difference of each seed of each variant that has a difference."""
    return [
        {"variant": clean(row.variant), "seed": seed, "difference": rounded(difference)}
        for row in table.rows
        if row.difference is not None
        for seed, difference in table.differences.get(row.variant, {}).items()
    ]


def forest_values(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """Return the variant, difference, interval and verdict of each row that has a difference."""
    return [
        {
            "variant": clean(row.variant),
            "difference": row.difference,
            "low": row.low,
            "high": row.high,
            "n": row.n,
            "kind": row.kind if row.kind in VERDICT_COLORS else "other",
            "verdict": clean(row.summary),
            "text": _interval_text(row),
        }
        for row in rows
        if row.difference is not None
    ]


def _interval_text(row: Row) -> str:
    interval = "" if row.low is None or row.high is None else f" [{row.low:+.3g}, {row.high:+.3g}]"
    return f"{row.difference:+.3g}{interval}"


def forest(table: Table, rows: Sequence[Row], seeds: Sequence[Mapping[str, Any]] = ()) -> alt.LayerChart:
    """Return a chart of the differences of these rows with their intervals, and of those of single seeds."""
    values = forest_values(rows)
    kinds = [kind for kind in VERDICT_COLORS if any(value["kind"] == kind for value in values)]
    domain = _forest_domain(table, rows, seeds)
    title = f"difference in {clean(table.metric)} ({table.better} is better)"
    x = alt.X(
        "difference:Q", title=title, scale=alt.Scale(domain=domain, nice=False, zero=False), axis=alt.Axis(tickCount=5)
    )
    y = alt.Y("variant:N", sort=None, axis=None)
    scale = alt.Scale(domain=kinds, range=[VERDICT_COLORS[kind] for kind in kinds])
    shapes = alt.Scale(domain=kinds, range=[SHAPES[list(VERDICT_COLORS).index(kind)] for kind in kinds])
    tooltip = [alt.Tooltip("variant:N"), alt.Tooltip("text:N", title="difference"), alt.Tooltip("n:Q"), "verdict:N"]
    base = alt.Chart(alt.InlineData(values=values)).encode(y=y)
    layers = [alt.Chart(alt.InlineData(values=[{"zero": 0}])).mark_rule(color=INK, opacity=0.6).encode(x="zero:Q")]
    if table.margin is not None:
        band = alt.InlineData(values=[{"from": -table.margin, "to": table.margin}])
        layers.insert(0, alt.Chart(band).mark_rect(color=INK, opacity=0.09, clip=True).encode(x="from:Q", x2="to:Q"))
    if seeds:
        dots = alt.Chart(alt.InlineData(values=list(seeds))).encode(y=y, x="difference:Q", tooltip=list(SEED_TOOLTIP))
        layers.append(dots.mark_circle(color=INK, size=22, opacity=0.5, yOffset=16, clip=True))
    interval = base.transform_filter("isValid(datum.low)").mark_rule(strokeWidth=3, clip=True, yOffset=8)
    layers += [
        interval.encode(x=alt.X("low:Q"), x2="high:Q", color=alt.Color("kind:N", scale=scale), tooltip=tooltip),
        base.mark_point(filled=True, size=90, opacity=1, yOffset=8).encode(
            x=x, color=alt.Color("kind:N", scale=scale), shape=alt.Shape("kind:N", scale=shapes), tooltip=tooltip
        ),
        base.mark_text(align="left", baseline="bottom", yOffset=0, limit=alt.expr("width")).encode(
            x=alt.value(0), text="variant:N"
        ),
    ]
    return layered(*layers, height=ROW_HEIGHT * len(values))


def _forest_domain(table: Table, rows: Sequence[Row], seeds: Sequence[Mapping[str, Any]]) -> list[float]:
    """Return the range of the axis: intervals and seeds, with a margin of 5 %."""
    low, high = plot_range(rows, table.margin)
    differences = [float(value["difference"]) for value in seeds]
    low, high = min([low, *differences]), max([high, *differences])
    padding = (high - low) * 0.05
    return [low - padding, high + padding]


def curve_figure(table: Table, entries: Iterable[TrialEntry]) -> Figure | None:
    """Return the learning curves: the mean of the metric over seeds and its 95 % t-interval at each evaluation."""
    names = [row.variant for row in (table.baseline, *table.rows)]
    values = list(curve_values(entries, table.metric, names))
    if len({value["step"] for value in values}) < 2:
        return None
    fields = {key: title for key, title in X_OF_CURVES.items() if all(value.get(key) for value in values)}
    colors = color_scale([clean(name) for name in names])
    tooltip = ["variant:N", alt.Tooltip("step:Q"), alt.Tooltip("mean:Q", format=".4g"), "low:Q", "high:Q", "n:Q"]
    base = hide_variants(alt.Chart(alt.InlineData(values=values))).encode(
        x=alt.X("step:Q", title=X_OF_CURVES["step"], axis=alt.Axis(tickCount=5, format="~s")),
        color=alt.Color("variant:N", scale=colors),
    )
    y = alt.Y("mean:Q", title=clean(table.metric), scale=alt.Scale(zero=False))
    # The wheel zooms only with the shift key, because a plain wheel scrolls the page.
    zoom: Any = alt.selection_interval(bind="scales", zoom="wheel![event.shiftKey]")
    band = base.mark_area(opacity=0.18).encode(y=alt.Y("low:Q"), y2="high:Q")
    line = base.mark_line(point=alt.OverlayMarkDef(size=30), strokeWidth=2).encode(y=y, tooltip=tooltip)
    return Figure(
        name="curves",
        title="Learning curves",
        description=f"{clean(table.metric)} during training: the mean over seeds and its 95 % t-interval, by variant.",
        chart=layered(band, line.add_params(zoom), height=HEIGHT),
        values=values,
        columns={
            "variant": "variant",
            **{key: key for key in fields},
            "mean": "mean",
            "low": "low",
            "high": "high",
            "n": "n",
        },
        x_choices=fields,
        note="Mean over seeds, with a 95 % t-interval at each evaluation.",
        page_note="Drag to move, shift and scroll to zoom.",
        log_choice=all(value["low"] > 0 for value in values),
    )


def curve_values(entries: Iterable[TrialEntry], metric: str, names: Sequence[str]) -> Iterator[dict[str, Any]]:
    """Yield the mean and 95 % t-interval over seeds of each variant at each step of evaluation."""
    points: dict[tuple[str, int], list[dict[str, float]]] = {}
    for entry in entries:
        if entry.variant not in names:
            continue
        for point in entry.result.get("curve") or ():
            value = point.get(metric)
            if isinstance(value, int | float) and math.isfinite(value):
                share = point["step"] / entry.result["steps"] if entry.result.get("steps") else 0.0
                seconds = entry.provenance.get("training_seconds") or 0.0
                costs = {"tokens": entry.result.get("tokens", 0), "flops": entry.result.get("total_flops", 0)}
                scaled = {key: share * number for key, number in {**costs, "seconds": seconds}.items()}
                points.setdefault((entry.variant, point["step"]), []).append({"value": value, **scaled})
    for (variant, step), group in sorted(points.items(), key=lambda item: (names.index(item[0][0]), item[0][1])):
        mean, low, high = t_interval([point["value"] for point in group])
        means = {key: rounded(fmean(point[key] for point in group)) for key in ("tokens", "flops", "seconds")}
        yield {
            "variant": clean(variant),
            "step": step,
            "mean": mean,
            "low": low,
            "high": high,
            "n": len(group),
            **means,
        }


def cost_figures(table: Table) -> Iterator[Figure]:
    """Yield the metric against each cost that differs between variants, with the Pareto front."""
    rows = [row for row in (table.baseline, *table.rows) if row.mean is not None]
    for cost, label in LABELS.items():
        pairs = [(row, row.costs[cost].value) for row in rows if cost in row.costs]
        points = [(row, value) for row, value in pairs if value is not None and math.isfinite(value)]
        if len({value for _, value in points}) < 2:
            continue
        more_is_better = cost == "tokens_per_second"
        front = pareto_front(
            [(value, row.mean or 0.0) for row, value in points], (more_is_better, table.better == "higher")
        )
        values = [
            {
                "variant": clean(row.variant),
                "cost": value,
                "mean": row.mean,
                "front": index in front,
                "verdict": row.kind,
            }
            for index, (row, value) in enumerate(points)
        ]
        colors = color_scale([str(value["variant"]) for value in values])
        base = hide_variants(alt.Chart(alt.InlineData(values=values))).encode(
            x=alt.X(
                "cost:Q", title=label, scale=alt.Scale(zero=False, padding=12), axis=alt.Axis(format="~s", tickCount=4)
            ),
            y=alt.Y("mean:Q", title=clean(table.metric), scale=alt.Scale(zero=False, padding=12)),
        )
        tooltip = ["variant:N", alt.Tooltip("cost:Q", title=label, format=".4s"), alt.Tooltip("mean:Q", format=".4g")]
        line = base.transform_filter("datum.front").mark_line(
            color=INK, opacity=0.5, strokeDash=[4, 3], interpolate="linear"
        )
        point = base.mark_point(filled=True, size=110, opacity=1).encode(
            color=alt.Color("variant:N", scale=colors),
            shape=alt.Shape("front:N", scale=alt.Scale(domain=[True, False], range=["circle", "square"]), legend=None),
            tooltip=[*tooltip, alt.Tooltip("front:N", title="on the Pareto front")],
        )
        on_front = ", ".join(str(value["variant"]) for value in values if value["front"])
        yield Figure(
            name=f"metric-by-{label.lower().replace('/', '-per-').replace(' ', '-')}",
            title=f"{clean(table.metric)} by {label}",
            description=f"{clean(table.metric)} against {label}. On the Pareto front (circles): {on_front}.",
            chart=layered(line, point, height=HEIGHT),
            values=values,
            note="Circles, joined by a line, are on the Pareto front; squares are not.",
            columns={"variant": "variant", "cost": label, "mean": table.metric, "front": "on the Pareto front"},
            choice=(f"{clean(table.metric)} by", label),
        )


def pareto_front(points: Sequence[tuple[float, float]], higher: tuple[bool, bool]) -> set[int]:
    """Return the indices of the points that no other point dominates; `higher` is whether more is better, by axis."""
    costs = [
        tuple(-value if more_is_better else value for value, more_is_better in zip(point, higher, strict=True))
        for point in points
    ]
    return {
        index for index, (x, y) in enumerate(costs) if not any(a <= x and b <= y and (a, b) != (x, y) for a, b in costs)
    }


def t_interval(values: Sequence[float]) -> tuple[float, float, float]:
    """Return the mean and the ends of its 95 % t-interval; a single value has an interval of width 0."""
    mean = fmean(values)
    half = t_quantile(0.975, len(values) - 1) * stdev(values) / math.sqrt(len(values)) if len(values) > 1 else 0.0
    return rounded(mean), rounded(mean - half), rounded(mean + half)


def rounded(value: float) -> float:
    """Return a number with six digits, which keeps a report small; a chart shows no more."""
    return float(f"{value:.6g}")


def color_scale(names: Sequence[str]) -> alt.Scale:
    """Return one colour for each variant, in all charts of a study."""
    return alt.Scale(domain=list(names), range=[COLORS[index % len(COLORS)] for index in range(len(names))])


def layered(*charts: alt.Chart, height: int) -> alt.LayerChart:
    """Return charts on the same axes, as wide as the element that contains them."""
    return alt.LayerChart(layer=list(charts), height=height, width="container")


def hide_variants(chart: alt.Chart) -> alt.Chart:
    """Return a chart without the variants that its reader has hidden."""
    return chart.add_params(alt.param(name=HIDDEN, value=[])).transform_filter(f"indexof({HIDDEN}, datum.variant) < 0")
