"""Lines of cells in a terminal: the widest arrangement that fits, whatever the table is of."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from io import BytesIO, TextIOWrapper

import pytest
from rich.console import Console

from paribus.analysis.grid import Cell, Column, Grid, row_cells
from paribus.report.terminal import Pen, parts_as_text, print_parts

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
def test_nothing_is_wider_than_there_is_room_and_no_letter_is_lost(width: int, costs: int) -> None:
    grid = grid_of(costs)
    lines = drawn(grid, width)
    assert max(map(len, lines)) <= width
    cells = "".join(text for row in grid.rows for text, _ in row if text)
    assert Counter(cells.replace(" ", "")) - Counter("".join(lines)) == Counter()


def test_there_are_as_many_tables_as_there_is_room_for() -> None:
    grid = grid_of(costs=4)
    assert len(drawn(grid, 200)) == 3
    below = drawn(grid, 120)
    assert [text.split()[0] for text in below if "variant" in text] == ["variant", "variant"]
    assert "" in below, "costs stand in a table of their own"
    stacked = drawn(grid, 40)
    assert stacked[:2] == ["attention=restricted(window=16),", "norm=rmsnorm"]
    assert "  n: 5" in stacked
    assert "  cost 3: 3.25×" in stacked  # noqa: RUF001  # times, and no letter


def test_a_row_in_a_narrow_terminal_has_the_lines_that_it_brings() -> None:
    narrow_rows = [[Cell("first"), Cell("one"), Cell("two")], [Cell("second"), Cell("three")]]
    assert drawn(grid_of(narrow=narrow_rows), 40) == ["first", "  one", "  two", "second", "  three"]


def test_a_picture_stands_before_the_verdict_where_there_is_room() -> None:
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


def test_a_console_without_letters_is_given_none() -> None:
    file = TextIOWrapper(BytesIO(), encoding="ascii", newline="\n")
    print_parts(lambda pen: pen.grid(grid_of(costs=1)), Console(file=file, width=200))
    file.flush()
    assert "0.25x" in file.buffer.getvalue().decode()
    assert Pen(Console(width=80, force_terminal=False)).plain("plain") == "plain"
