"""Tables as text: printed, in a notebook, and their repr."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from paribus.analysis.compare import compare
from paribus.analysis.table import Table
from paribus.analysis.trials import ComparisonSpec, TrialEntry
from paribus.api import TableRenderer
from paribus.report.markdown import markdown
from paribus.report.terminal import table_text

Ask = Callable[..., ComparisonSpec]
Study = Callable[..., list[TrialEntry]]


@pytest.fixture
def table(study: Study, ask: Ask) -> Table:
    entries = study(baseline=[2.0, 2.1, 1.9], mqa=[2.5, 2.61, 2.39], gqa=[2.0, 2.1, 1.95])
    return compare(entries, ask(entries)).with_renderer(TableRenderer())


def test_printing_a_table_gives_80_columns_without_colours(table: Table) -> None:
    assert str(table) == table_text(table, 80).rstrip()
    assert max(map(len, str(table).splitlines())) <= 80
    assert "\x1b" not in str(table)


def test_a_notebook_shows_the_markdown(table: Table) -> None:
    assert table._repr_markdown_() == table.to_markdown() == markdown(table)


def test_the_repr_of_a_table_lists_its_verdicts(table: Table) -> None:
    assert repr(table).count("\n") == 0
    assert len(repr(table)) < 200
    for row in table.rows:
        assert f"{row.variant}: {row.verdict}" in repr(table)
