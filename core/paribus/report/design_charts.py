"""Charts of designs: rungs of a ladder, effects of a factorial, several settings, and longer sequences."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import combinations
from statistics import fmean
from typing import Any, Final

import altair as alt

from paribus.analysis.formatting import clean
from paribus.analysis.table import Table
from paribus.analysis.trials import ComparisonSpec, TrialEntry
from paribus.report.charts import (
    HEIGHT,
    INK,
    ROW_HEIGHT,
    VERDICT_COLORS,
    Figure,
    color_scale,
    forest,
    forest_values,
    hide_variants,
    layered,
    rounded,
    t_interval,
)

EXTRAPOLATION_METRIC: Final = re.compile(r"val/extrapolation/(?P<objective>[^.]+)\.(?P<metric>[^.]+)\.x(?P<times>\d+)$")


def family_figures(table: Table) -> Iterator[Figure]:
    """Yield the waterfall chart of a ladder, and a forest plot of each other family."""
    for family in table.families:
        if family.key == "steps":
            yield from _waterfall(table)
        elif values := forest_values(family.rows):
            name = family.title[:1].upper() + family.title[1:]
            yield Figure(
                name=family.key.replace("_", "-"),
                title=name,
                description=f"{name} on {clean(table.metric)}, with their intervals.",
                chart=forest(table, family.rows),
                values=values,
                columns={"variant": "effect", "text": "size", "verdict": "verdict"},
            )


def _waterfall(table: Table) -> Iterator[Figure]:
    """Yield a chart with a bar for each rung of a ladder, from the mean of the rung below to its mean."""
    means = {row.variant: row.mean for row in (table.baseline, *table.rows) if row.mean is not None}
    steps = next(family.rows for family in table.families if family.key == "steps")
    values: list[dict[str, Any]] = []
    for row in steps:
        start, end = means.get(row.baseline), means.get(row.variant)
        if start is not None and end is not None:
            kind = row.kind if row.kind in VERDICT_COLORS else "other"
            texts = {"text": f"{end - start:+.3g}", "verdict": clean(row.verdict)}
            values.append({"variant": clean(row.variant), "from": start, "to": end, "kind": kind, **texts})
    if not values:
        return
    kinds = [kind for kind in VERDICT_COLORS if any(value["kind"] == kind for value in values)]
    base = alt.Chart(alt.InlineData(values=values)).encode(y=alt.Y("variant:N", sort=None, axis=None))
    title = f"{clean(table.metric)} ({table.better} is better)"
    bars = base.mark_bar(height=10, yOffset=8).encode(
        x=alt.X("from:Q", title=title, scale=alt.Scale(zero=False, padding=10), axis=alt.Axis(tickCount=5)),
        x2="to:Q",
        color=alt.Color("kind:N", scale=alt.Scale(domain=kinds, range=[VERDICT_COLORS[kind] for kind in kinds])),
        tooltip=["variant:N", alt.Tooltip("from:Q", format=".4g"), alt.Tooltip("to:Q", format=".4g"), "verdict:N"],
    )
    ends = base.mark_tick(thickness=2, size=18, yOffset=8, color=INK).encode(x="to:Q")
    names = base.transform_calculate(label="datum.variant + ': ' + datum.text").mark_text(
        align="left", baseline="bottom", limit=alt.expr("width")
    )
    yield Figure(
        name="ladder",
        title="From rung to rung",
        description=f"{title}: each bar goes from the mean of the rung below to the mean of the rung.",
        chart=layered(bars, ends, names.encode(x=alt.value(0), text="label:N"), height=ROW_HEIGHT * len(values)),
        values=values,
        columns={
            "variant": "rung",
            "from": "rung below",
            "to": table.metric,
            "text": "difference",
            "verdict": "verdict",
        },
    )


def interaction_figures(table: Table, entries: Iterable[TrialEntry], comparison: ComparisonSpec) -> Iterator[Figure]:
    """Yield a chart of the mean of each combination of two factors, averaged over the other factors."""
    crossed = comparison.factorial
    if crossed is None or crossed.regular is not None:
        return
    values_by_variant: dict[str, list[float]] = {}
    for entry in entries:
        if (value := entry.value(table.metric)) is not None:
            values_by_variant.setdefault(entry.variant, []).append(value)
    for first_factor, second_factor in combinations(range(len(crossed.factors)), 2):
        groups: dict[tuple[int, int], list[float]] = {}
        for cell, variant in crossed.cells.items():
            groups.setdefault((cell[first_factor], cell[second_factor]), []).extend(values_by_variant.get(variant, []))
        names = [["without", *map(clean, crossed.factors[factor])] for factor in (first_factor, second_factor)]
        values = [
            {
                "x": names[0][first_level],
                "line": names[1][second_level],
                "mean": rounded(fmean(group)),
                "n": len(group),
            }
            for (first_level, second_level), group in sorted(groups.items())
            if group
        ]
        x_title, line_title = " / ".join(names[0][1:]), " / ".join(names[1][1:])
        chart = (
            alt.Chart(alt.InlineData(values=values))
            .mark_line(point=alt.OverlayMarkDef(size=60), strokeWidth=2)
            .encode(
                x=alt.X("x:N", sort=names[0], title=x_title, axis=alt.Axis(labelAngle=0)),
                y=alt.Y("mean:Q", title=clean(table.metric), scale=alt.Scale(zero=False, padding=10)),
                color=alt.Color("line:N", scale=color_scale(names[1]), legend=alt.Legend(title=line_title)),
                tooltip=["x:N", "line:N", alt.Tooltip("mean:Q", format=".4g"), "n:Q"],
            )
        )
        yield Figure(
            name=f"interaction-{first_factor + 1}-{second_factor + 1}",
            title=f"{x_title} with {line_title}",
            description=f"Mean of {clean(table.metric)} with and without {x_title}, a line with and one without "
            f"{line_title}. "
            "Parallel lines mean that the two effects add up.",
            chart=chart.properties(height=HEIGHT, width="container"),
            values=values,
            columns={"x": x_title, "line": line_title, "mean": table.metric, "n": "trials"},
        )


def settings_figure(table: Table) -> Figure | None:
    """Return a chart of the difference of each variant in each setting, such as scales and kinds of matching."""
    settings = [clean(setting.setting) for setting in table.settings]
    values = [
        {**value, "setting": clean(setting.setting)}
        for setting in table.settings
        for value in forest_values(setting.rows)
    ]
    if len(settings) < 2 or not values:
        return None
    colors = color_scale([clean(row.variant) for row in (table.baseline, *table.rows)])
    shown = list(dict.fromkeys(value["variant"] for value in values))
    base = hide_variants(alt.Chart(alt.InlineData(values=values))).encode(
        x=alt.X("setting:N", sort=settings, title=None, axis=alt.Axis(labelAngle=0)),
        xOffset=alt.XOffset("variant:N", sort=None),
        color=alt.Color("variant:N", scale=colors, legend=alt.Legend(values=shown)),
        tooltip=["setting:N", "variant:N", alt.Tooltip("text:N", title="difference"), "verdict:N"],
    )
    y = alt.Y("difference:Q", title=f"difference in {clean(table.metric)}")
    rule = base.transform_filter("isValid(datum.low)").mark_rule(strokeWidth=3).encode(y=alt.Y("low:Q"), y2="high:Q")
    zero = alt.Chart(alt.InlineData(values=[{"zero": 0}])).mark_rule(color=INK, opacity=0.6).encode(y="zero:Q")
    return Figure(
        name="settings",
        title="The same comparison in each setting",
        description=f"Differences in {clean(table.metric)} with their intervals in {', '.join(settings)}.",
        chart=layered(zero, rule, base.mark_point(filled=True, size=90, opacity=1).encode(y=y), height=HEIGHT),
        values=values,
        columns={"setting": "setting", "variant": "variant", "text": "difference", "verdict": "verdict"},
    )


def length_figures(table: Table, entries: Sequence[TrialEntry]) -> Iterator[Figure]:
    """Yield a chart of each metric that was measured on longer sequences than those of training, by length."""
    names = [row.variant for row in (table.baseline, *table.rows)]
    groups: dict[tuple[str, str, str, int], dict[int, float]] = {}
    for entry in entries:
        metrics = entry.result.get("metrics", {}) if entry.variant in names else {}
        for key in metrics:
            if match := EXTRAPOLATION_METRIC.match(key):
                objective, metric, times = match["objective"], match["metric"], int(match["times"])
                for length, path in ((1, f"val/{objective}/{metric}"), (times, key)):
                    if (value := entry.value(path)) is not None:
                        groups.setdefault((objective, metric, entry.variant, length), {})[entry.seed] = value
    for objective, metric in dict.fromkeys((key[0], key[1]) for key in groups):
        rows = [
            {
                "variant": clean(variant),
                "times": times,
                **dict(zip(("mean", "low", "high"), t_interval([*seeds.values()]), strict=True)),
            }
            for (*group, variant, times), seeds in sorted(
                groups.items(), key=lambda item: (names.index(item[0][2]), item[0][3])
            )
            if group == [objective, metric]
        ]
        base = hide_variants(alt.Chart(alt.InlineData(values=rows))).encode(
            x=alt.X("times:O", title="length, in lengths of training", axis=alt.Axis(labelAngle=0)),
            color=alt.Color("variant:N", scale=color_scale([clean(name) for name in names])),
            tooltip=["variant:N", "times:O", alt.Tooltip("mean:Q", format=".3g")],
        )
        y = alt.Y("mean:Q", title=f"{clean(objective)} {clean(metric)}", scale=alt.Scale(zero=False))
        band = base.mark_area(opacity=0.15).encode(y=alt.Y("low:Q"), y2="high:Q")
        line = base.mark_line(point=alt.OverlayMarkDef(size=60), strokeWidth=2).encode(y=y)
        yield Figure(
            name=f"length-{objective}-{metric}",
            title=f"{clean(metric)} on longer sequences",
            description=f"Mean {clean(metric)} over seeds with its 95 % t-interval, by the length of the sequences.",
            chart=layered(band, line, height=HEIGHT),
            values=rows,
            columns={"variant": "variant", "times": "length", "mean": "mean", "low": "low", "high": "high"},
        )
