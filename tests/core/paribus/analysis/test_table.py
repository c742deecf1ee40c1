"""Tables as text: printed, in a notebook, and their repr."""

from __future__ import annotations

import sys
from collections.abc import Callable

import numpy as np
import pytest
from tests.fixtures.problems import raises_problem

from paribus.analysis.compare import compare
from paribus.analysis.table import Table
from paribus.analysis.trials import ComparisonSpec, TrialEntry
from paribus.api import TableRenderer
from paribus.errors import SpecError
from paribus.report.markdown import markdown
from paribus.report.terminal import table_text

Make = Callable[..., TrialEntry]
Ask = Callable[..., ComparisonSpec]
Study = Callable[..., list[TrialEntry]]


@pytest.fixture
def table(study: Study, ask: Ask) -> Table:
    entries = study(baseline=[2.0, 2.1, 1.9], mqa=[2.5, 2.61, 2.39], gqa=[2.0, 2.1, 1.95])
    return compare(entries, ask(entries)).with_renderer(TableRenderer())


def test_printing_a_table_gives_80_columns_without_colours(table: Table) -> None:
    assert str(table).splitlines()[:5] == table_text(table, 80).splitlines()[:5]
    assert max(map(len, str(table).splitlines())) <= 80
    assert "\x1b" not in str(table)


def test_printing_a_table_leaves_out_its_captions(table: Table) -> None:
    assert len(table.caption) > 1
    assert "A difference is variant" in table.caption[0]
    assert "A difference is variant" not in str(table)
    assert "print(*table.caption)" in str(table)


def test_a_notebook_shows_the_markdown(table: Table) -> None:
    assert table._repr_markdown_() == table.to_markdown() == markdown(table)


def test_the_repr_of_a_table_lists_its_verdicts(table: Table) -> None:
    assert repr(table).count("\n") == 0
    assert len(repr(table)) < 200
    for row in table.rows:
        assert f"{row.variant}: {row.verdict}" in repr(table)


def test_a_notebook_shows_html_with_a_picture_of_each_interval(table: Table) -> None:
    html = table._repr_html_()
    assert html is not None
    assert html.count("<svg") == len(table.rows)
    assert "<script" not in html
    assert all(row.verdict in html for row in table.rows)


def test_names_in_html_are_text(make: Make, ask: Ask, study: Study) -> None:
    entries = study(baseline=[2.0, 2.1, 1.9])
    entries += [make("<script>x</script>", seed, varied={"norm": "rmsnorm"}, loss=1.9) for seed in range(3)]
    html = compare(entries, ask(entries)).with_renderer(TableRenderer())._repr_html_()
    assert html is not None
    assert "<script>" not in html
    assert "&lt;script&gt;" in html


@pytest.mark.thorough
def test_a_data_frame_has_a_row_for_each_variant(table: Table) -> None:
    frame = table.to_dataframe()
    assert list(frame["variant"]) == ["baseline", "mqa", "gqa"]
    assert frame["difference"].iloc[1] == pytest.approx(0.5)
    assert np.isnan(frame["difference"].iloc[0])


def test_a_data_frame_without_pandas_names_the_extra(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    with raises_problem(SpecError, "not-installed", "paribus[pandas]"):
        table.to_dataframe()


def test_the_plot_is_a_chart_of_the_differences(table: Table) -> None:
    document = table.plot().to_dict()
    assert document["width"] == 480
    assert "mqa" in str(document["datasets"])


def test_latex_and_csv_have_the_chosen_columns(table: Table) -> None:
    assert table.to_csv(["variant", "n"]).splitlines()[1] == "baseline,3"
    assert "variant & verdict" in table.to_latex(["variant", "verdict"])
    assert r"\begin{table*}" in table.to_latex()
    assert "| variant | verdict |" in table.to_markdown(["variant", "verdict"])
