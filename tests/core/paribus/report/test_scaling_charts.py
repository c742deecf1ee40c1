"""Power laws as lines: the line and its interval against numpy and scipy, the measured range, and the picture."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from paribus.analysis.compare import compare
from paribus.analysis.scaling_laws import SIZE, power_law
from paribus.analysis.table import Section, Table
from paribus.analysis.trials import ComparisonSpec, TrialEntry
from paribus.report.charts import COLORS
from paribus.report.figures import study_figures
from paribus.report.notebook import notebook_html
from paribus.report.scaling_charts import scaling_figure, ticks
from paribus.report.scaling_svg import scaling_svg

SIZES = (1e4, 4e4, 2e5)
LOSSES = {
    "baseline": [{0: 3.2, 1: 3.25, 2: 3.15}, {0: 2.9, 1: 3.0, 2: 2.85}, {0: 2.6, 1: 2.65, 2: 2.66}],
    "gqa": [{0: 3.1, 1: 3.0, 2: 3.12}, {0: 2.8, 1: 2.75, 2: 2.9}, {0: 2.5, 1: 2.4, 2: 2.45}],
}


@pytest.fixture(name="table")
def _table(study: Callable[..., list[TrialEntry]], ask: Callable[..., ComparisonSpec]) -> Table:
    entries = study(baseline=[2.0, 2.1, 1.9], mqa=[2.5, 2.61, 2.39], gqa=[2.0, 2.1, 1.95])
    return with_laws(compare(entries, ask(entries)), LOSSES)


def with_laws(table: Table, losses: Mapping[str, list[dict[int, float]]]) -> Table:
    laws = {name: power_law(SIZES, values, alpha=table.alpha) for name, values in losses.items()}
    documents = [{"variant": name, **law.to_json()} for name, law in laws.items() if law is not None]
    return replace(table, sections=(Section(key="scaling", title="", lines=(), document={"laws": documents}),))


def rows_of(table: Table) -> list[list[dict[str, Any]]]:
    """Return the rows of data of each layer: the interval, the lines, the losses and the means."""
    figure = scaling_figure(table)
    assert figure is not None
    document = figure.chart.to_dict()
    return [document["datasets"][layer["data"]["name"]] for layer in document["layer"]]


def test_the_line_is_the_mean_of_the_seeds_lines_with_the_interval_of_student(table: Table) -> None:
    _, lines, _, _ = rows_of(table)
    for name, losses in LOSSES.items():
        fits = [np.polyfit(np.log(SIZES), np.log([scale[seed] for scale in losses]), 1) for seed in range(3)]
        rows = [row for row in lines if row["variant"] == name]
        assert len(rows) > 10
        for row in rows:
            logs = [np.polyval(fit, np.log(row[SIZE])) for fit in fits]
            ends = stats.t.interval(1 - table.alpha, 2, loc=np.mean(logs), scale=stats.sem(logs))
            expected = np.exp([np.mean(logs), *ends])
            assert (row["loss"], row["low"], row["high"]) == pytest.approx(expected, rel=1e-4)


def test_the_line_ends_where_the_measurements_end(table: Table) -> None:
    _, lines, losses, means = rows_of(table)
    for rows in (lines, losses, means):
        assert (min(row[SIZE] for row in rows), max(row[SIZE] for row in rows)) == (min(SIZES), max(SIZES))
    assert len(losses) == sum(len(scale) for scales in LOSSES.values() for scale in scales)
    assert [row["mean"] for row in means] == pytest.approx(
        [np.mean([*scale.values()]) for scales in LOSSES.values() for scale in scales], rel=1e-5
    )
    figure = scaling_figure(table)
    assert figure is not None
    assert "nothing is measured beyond" in figure.note


def test_both_axes_are_logarithmic_and_colours_are_those_of_the_other_charts(table: Table) -> None:
    figure = scaling_figure(table)
    assert figure is not None
    for layer in figure.chart.to_dict()["layer"]:
        assert layer["encoding"]["x"]["scale"]["type"] == "log"
        assert layer["encoding"]["color"]["scale"] == {"domain": ["baseline", "mqa", "gqa"], "range": [*COLORS[:3]]}
        assert layer["encoding"]["color"]["legend"]["values"] == ["baseline", "gqa"]  # `mqa` has no law
        if layer["mark"]["type"] != "area":
            assert layer["encoding"]["y"]["scale"]["type"] == "log"
    assert "scaling" in [figure.name for setting, figure in study_figures(table, {}, {}) if not setting]


def test_one_seed_has_a_line_without_an_interval(table: Table) -> None:
    one = {name: [{0: scale[0]} for scale in scales] for name, scales in LOSSES.items()}
    figure = scaling_figure(with_laws(table, one))
    assert figure is not None
    assert "needs two seeds" in figure.note
    assert {row["low"] for row in rows_of(with_laws(table, one))[0]} == {None}
    assert "<polygon" not in scaling_svg(with_laws(table, one))


def test_a_notebook_shows_the_lines_without_a_script(table: Table) -> None:
    picture = scaling_svg(table)
    assert picture in notebook_html(table)
    assert (picture.count("<polyline"), picture.count("<polygon")) == (2, 2)
    assert picture.count('r="2.5"') == 18
    assert f'stroke="{COLORS[2]}"' in picture  # `gqa` is the third variant
    measured = [float(x) for x in re.findall(r'<circle cx="([\d.]+)" cy="[\d.]+" r="2.5"', picture)]
    for line in re.findall(r'<polyline points="([^"]+)"', picture):
        xs = [float(point.split(",")[0]) for point in line.split()]
        assert (min(xs), max(xs)) == (min(measured), max(measured))


def test_a_table_without_laws_has_no_chart(table: Table) -> None:
    plain = replace(table, sections=())
    assert scaling_figure(plain) is None
    assert scaling_svg(plain) == ""
    assert "<polyline" not in notebook_html(plain)


@given(st.floats(1e-3, 1e12), st.floats(1.02, 1e6))
def test_ticks_are_round_numbers_within_the_range(low: float, factor: float) -> None:
    high = low * factor
    places = ticks([high, low])
    assert places == sorted(set(places))
    assert 2 <= len(places) <= 12
    assert low * (1 - 1e-9) <= places[0] < places[-1] <= high * (1 + 1e-9)
    assert all(float(f"{place:.4g}") == pytest.approx(place, rel=1e-9) for place in places)
