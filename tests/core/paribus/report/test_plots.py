"""Forest plot of the intervals in the terminal, compared with the numbers."""

from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paribus.analysis.compare import compare
from paribus.analysis.table import Table
from paribus.analysis.trials import ComparisonSpec, TrialEntry
from paribus.report.plots import Forest

Ask = Callable[..., ComparisonSpec]
Study = Callable[..., list[TrialEntry]]

LOSSES = st.lists(st.floats(1, 3).map(lambda value: round(value, 3)), min_size=4, max_size=4)


def table_of(study: Study, ask: Ask, margin: float | None = None, **losses: list[float]) -> Table:
    entries = study(**losses)
    return compare(entries, ask(entries, margin=margin))


@pytest.mark.thorough
@given(baseline=LOSSES, mqa=LOSSES, gqa=LOSSES, width=st.integers(13, 60), margin=st.none() | st.floats(0.01, 1))
@settings(max_examples=60)
def test_lines_have_the_requested_width_and_scale(
    baseline: list[float],
    mqa: list[float],
    gqa: list[float],
    width: int,
    margin: float | None,
    study: Study,
    ask: Ask,
) -> None:
    table = table_of(study, ask, margin, baseline=baseline, mqa=mqa, gqa=gqa)
    forest = Forest(table, width)
    zero = forest.line(table.baseline).index("│")
    for row in table.rows:
        line = forest.line(row)
        assert len(line) == width
        assert row.difference is not None
        place = line.index("●" if row.low is not None else "○")
        assert (place - zero) * row.difference >= 0
        if row.low is not None and row.high is not None and "◂" not in line and "▸" not in line:
            ends = [index for index, sign in enumerate(line) if sign in "━●┿"]
            step = (forest.high - forest.low) / width
            assert (ends[-1] - ends[0]) * step == pytest.approx(row.high - row.low, abs=1.001 * step)


def test_a_very_wide_interval_is_truncated(study: Study, ask: Ask) -> None:
    base = [2.0, 2.0, 2.0]
    narrow = [[2.1, 2.11, 2.09], [2.2, 2.21, 2.19]]
    table = table_of(study, ask, baseline=base, mqa=narrow[0], gqa=narrow[1], rmsnorm=[0.0, 9.0, 2.0])
    lines = [Forest(table, 41).line(row) for row in table.rows]
    assert [line.strip("│ ").startswith("◂") for line in lines] == [False, False, True]
    assert lines[2].endswith("▸")


def test_a_single_pair_is_a_hollow_point(study: Study, ask: Ask) -> None:
    table = table_of(study, ask, baseline=[2.0], mqa=[2.5])
    line = Forest(table, 21).line(table.rows[0])
    assert line.count("○") == 1
    assert "●" not in line


def test_the_margin_stands_on_both_sides_of_zero(study: Study, ask: Ask) -> None:
    table = table_of(study, ask, 0.3, baseline=[2.0, 2.0, 2.0], mqa=[2.1, 2.2, 2.0])
    line = Forest(table, 41).line(table.baseline)
    lower, zero, upper = (index for index, sign in enumerate(line) if sign in "┊│")
    assert abs((zero - lower) - (upper - zero)) <= 1


def test_a_table_without_numbers_has_an_empty_plot(study: Study, ask: Ask) -> None:
    table = table_of(study, ask, baseline=[2.0], mqa=[2.0])
    assert Forest(table, 13).line(table.baseline).strip() == "│"
