"""Terminal tables fit every width, with the same content."""

from __future__ import annotations

import io
import re
from collections import Counter
from collections.abc import Callable, Sequence
from io import BytesIO, TextIOWrapper
from typing import Any

import pytest
from rich.cells import cell_len
from rich.console import Console

from paribus.analysis.compare import compare
from paribus.analysis.formatting import Cell, Column, Grid, clean, row_cells
from paribus.analysis.table import Table
from paribus.analysis.trials import ComparisonSpec, TrialEntry
from paribus.report.terminal import Pen, parts_as_text, print_parts, show_table, table_text

Make = Callable[..., TrialEntry]
Ask = Callable[..., ComparisonSpec]
Study = Callable[..., list[TrialEntry]]

BASE = [2.00, 2.10, 1.90, 2.05, 1.95]
WIDTHS = (20, 32, 40, 60, 80, 100, 120, 140, 200)


@pytest.fixture(name="table", scope="module")
def _table(make: Make, ask: Ask, study: Study) -> Table:
    """One of everything: each verdict, names of every length, flags, warnings, notes."""
    entries = study(
        baseline=BASE,
        mqa=[value + 0.5 + index / 100 for index, value in enumerate(BASE)],
        gqa=[value + 0.01 - index / 1000 for index, value in enumerate(BASE)],
        rmsnorm=[2.1, 1.8, 2.4, "failed", "pending"],
        lr=[9.0, 9.1, "diverged", 9.0, 9.2],
    )
    window = {"attention": {"name": "restricted", "window": 16}}
    entries += [make("attention=restricted(window=16) norm=rmsnorm", seed, varied=window) for seed in range(5)]
    entries += [
        make("\x1b[31mred\u202e|`x`", seed, varied={"norm": "rmsnorm"}, loss=1.5 + seed / 50) for seed in range(5)
    ]
    return compare(entries, ask(entries, margin=0.1))


def squeezed(text: str) -> str:
    return re.sub(r"\s", "", text)


@pytest.mark.parametrize("width", WIDTHS)
def test_no_line_is_wider_than_the_terminal(table: Table, width: int) -> None:
    lines = table_text(table, width).splitlines()
    assert max(map(cell_len, lines)) <= width
    assert "\x1b" not in "".join(lines)


@pytest.mark.parametrize("width", WIDTHS)
def test_every_variant_and_every_number_is_there_at_any_width(table: Table, width: int) -> None:
    text = squeezed(table_text(table, width))
    for row in table.rows:
        assert f"{row.n}/{row.planned}" in text or row.n == row.planned
        if row.difference is not None:
            assert f"{row.difference:+.3f}" in text
    for name in ("mqa", "gqa", "rmsnorm", "lr"):
        assert name in text
    for words in ("worse", "better", "equivalent", "inconclusive", "diverged1/5", "withheld"):
        assert words in text


@pytest.mark.parametrize("width", [40, 200])
def test_every_verdict_is_complete(table: Table, width: int) -> None:
    text = squeezed(table_text(table, width))
    for row in (table.baseline, *table.rows):
        assert squeezed(", ".join((row.verdict, *row.flags))) in text


@pytest.mark.parametrize("width", [20, 80, 140])
def test_certificates_warnings_notes_and_captions_are_shown(table: Table, width: int) -> None:
    text = squeezed(table_text(table, width))
    for line in (*table.warnings, *table.notes, *table.caption):
        assert squeezed(clean(line)) in text
    for name in ("mqa", "gqa"):
        assert squeezed(f"✓ {name}: {table.certificates[name].text}") in text
    assert "✗attention=restricted(window=16)norm=rmsnorm:changednothing" in text


def test_wide_terminals_show_a_plot_and_narrow_ones_a_list(table: Table) -> None:
    assert "━" in table_text(table, 140)
    assert "━" in table_text(table, 120)
    assert "━" not in table_text(table, 40)
    assert "variant" not in table_text(table, 40).split("✓")[0]
    one_table = [line for line in table_text(table, 220).splitlines() if line.startswith("variant")]
    assert len(one_table) == 1
    assert "params" in one_table[0]


def test_a_verdict_uses_the_remaining_width(study: Study, ask: Ask) -> None:
    entries = study(baseline=[3.3, 3.4, 3.5], mqa=[3.5, 3.4, 3.6])
    table = compare(entries, ask(entries))
    for width in (72, 80, 100, 140):
        lines = table_text(table, width).splitlines()
        index = next(index for index, line in enumerate(lines) if line.startswith("mqa"))
        text = re.sub(r"\s+", " ", " ".join(line[40:] for line in lines[index : index + 3]))
        assert re.search(r"inconclusive \(needs n ≥ ~\d+ \[\d+, \d+\]\), did not learn", text)
        assert width < 140 or "needs n" in lines[index]
        assert not lines[index + 2] or not lines[index + 3]


def test_the_plot_is_labelled_with_the_better_side(study: Study, ask: Ask) -> None:
    entries = study(baseline=BASE, mqa=BASE[::-1])
    for better, order in (("lower", r"better +worse"), ("higher", r"worse +better")):
        assert re.search(order, table_text(compare(entries, ask(entries, better=better)), 120))


def test_colours_only_where_there_is_a_terminal(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "\x1b[1;31mworse" in table_text(table, 120, color=True)
    monkeypatch.setenv("NO_COLOR", "1")
    file = io.StringIO()
    show_table(table, Console(file=file, width=100, force_terminal=True))
    assert not re.search(r"\x1b\[[0-9;]*3[0-9]m", file.getvalue())


def test_names_cannot_control_the_terminal(table: Table) -> None:
    text = table_text(table, 200)
    assert "\x1b" not in text
    assert "\u202e" not in text
    assert "\\u001b[31mred\\u202e|`x`" in text


@pytest.mark.parametrize("width", [40, 100, 200])
def test_an_ascii_terminal_gets_ascii(table: Table, width: int) -> None:
    buffer = io.BytesIO()
    file = io.TextIOWrapper(buffer, encoding="ascii", errors="strict", write_through=True)
    show_table(table, Console(file=file, width=width))
    text = buffer.getvalue().decode("ascii")
    assert max(map(len, text.splitlines())) <= width
    assert "(needsn>=~" in squeezed(text)
    assert "?" not in text


def test_printed_text_equals_rendered_text(table: Table, capsys: pytest.CaptureFixture[str], monkeypatch: Any) -> None:
    monkeypatch.setenv("COLUMNS", "90")
    show_table(table, with_notes=True)
    printed = capsys.readouterr().out
    assert printed == table_text(table, 90)
    show_table(table)
    shorter = capsys.readouterr().out
    assert len(shorter) < len(printed)
    assert "--notes" in shorter
    assert not re.search(r" $", printed, re.MULTILINE)


def test_a_table_without_numbers_is_rendered(study: Study, ask: Ask) -> None:
    entries = study(baseline=["diverged"], mqa=["pending"])
    for width in WIDTHS:
        assert "baseline diverged 1/1" in table_text(compare(entries, ask(entries)), width) or width < 60


@pytest.mark.thorough
def test_nothing_is_cut_off_at_any_width(study: Study, ask: Ask) -> None:
    entries = study(baseline=[5.55, 5.54], mqa=[5.56, 5.57], rmsnorm=[5.5, 5.6])
    table = compare(entries, ask(entries))
    assert any("learn" in " ".join((row.verdict, *row.flags)) for row in table.rows)
    for width in range(40, 170):
        assert "…" not in table_text(table, width), width


LONG = "attention=restricted(window=16), norm=rmsnorm"
WHY = "withheld (outputs are the same: the swap changes nothing)"


def grid_of(costs: int = 0, narrow: Sequence[Sequence[Cell]] = ()) -> Grid:
    heads = [
        Column("variant", wrap="name"),
        Column("n", align_right=True),
        Column("difference"),
        Column("verdict", wrap="verdict"),
    ]
    rows = [
        row_cells([LONG, "5", "+0.031 [+0.012, +0.050]", WHY], "withheld"),
        row_cells(["mqa", "12", "", "worse"], "worse"),
    ]
    prices = [Cell(f"{index}.25×") for index in range(costs)]  # noqa: RUF001  # times, and no letter
    return Grid(
        title="a table",
        columns=[*heads, *(Column(f"cost {index}", align_right=True) for index in range(costs))],
        rows=[[*row, *prices] for row in rows],
        narrow_rows=narrow,
        cost_columns=costs,
    )


def drawn(grid: Grid, width: int) -> list[str]:
    return parts_as_text(lambda pen: pen.grid(grid), width).rstrip().splitlines()


@pytest.mark.parametrize("costs", [0, 1, 6])
@pytest.mark.parametrize("width", [40, 58, 80, 116, 160, 240])
def test_grids_fit_the_width_without_losing_text(width: int, costs: int) -> None:
    grid = grid_of(costs)
    lines = drawn(grid, width)
    assert max(map(len, lines)) <= width
    cells = "".join(cell.text for row in grid.rows for cell in row)
    assert Counter(cells.replace(" ", "")) - Counter("".join(lines)) == Counter()


def test_the_number_of_tables_depends_on_the_width() -> None:
    grid = grid_of(costs=4)
    assert len(drawn(grid, 200)) == 3
    below = drawn(grid, 120)
    assert [text.split()[0] for text in below if "variant" in text] == ["variant", "variant"]
    assert "" in below, "costs stand in a table of their own"
    stacked = drawn(grid, 40)
    assert stacked[:2] == ["attention=restricted(window=16),", "norm=rmsnorm"]
    assert "  n: 5" in stacked
    assert "  cost 3: 3.25×" in stacked  # noqa: RUF001  # times, and no letter


def test_rows_of_a_narrow_terminal_have_their_lines() -> None:
    narrow_rows = [[Cell("first"), Cell("one"), Cell("two")], [Cell("second"), Cell("three")]]
    assert drawn(grid_of(narrow=narrow_rows), 40) == ["first", "  one", "  two", "second", "  three"]


def test_a_plot_is_before_the_verdict_in_wide_terminals() -> None:
    grid, widths = grid_of(costs=1), []

    def picture(width: int) -> tuple[Column, list[Cell]]:
        widths.append(width)
        return Column("less" + "more".rjust(width - 4)), [Cell("#" * width), Cell("#" * width)]

    def lines(width: int) -> list[str]:
        widths.clear()
        return parts_as_text(lambda pen: pen.grid(grid, picture), width).splitlines()

    wide = lines(220)
    assert wide[0].index("difference") < wide[0].index("less") < wide[0].index("verdict") < wide[0].index("cost 0")
    assert widths == [41], "and no wider than reads well"
    assert "#" in "".join(lines(100))
    assert lines(60)
    assert widths == []


def test_an_ascii_console_gets_ascii_grids() -> None:
    file = TextIOWrapper(BytesIO(), encoding="ascii", newline="\n")
    print_parts(lambda pen: pen.grid(grid_of(costs=1)), Console(file=file, width=200))
    file.flush()
    assert "0.25x" in file.buffer.getvalue().decode()
    assert Pen(Console(width=80, force_terminal=False)).plain("plain") == "plain"
