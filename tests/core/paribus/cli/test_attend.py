"""`paribus attend`: heatmaps in terminals of any width."""

from __future__ import annotations

import io
import re
import sys

import pytest

from paribus.cli.attend import PLAIN, SHADES, heatmap_lines

WEIGHTS = [[1.0, 0.0, 0.0], [0.5, 0.5, 0.0], [0.3, 0.3, 0.4]]


def test_a_map_has_a_label_for_each_row_and_each_column_and_a_legend() -> None:
    assert list(heatmap_lines(WEIGHTS, ["a", "two", " x"], ["a", "two", "\n"], width=40)) == [
        "      t",
        "      w",
        "    a o ↵",
        "  a ██",
        "two ▓▓▓▓",
        " ·x ▒▒▒▒▓▓",
        "    from ░ 0.016, ▒ 0.14, ▓ 0.39, █ 0.77; maximum 1",
    ]


@pytest.mark.parametrize("width", [1, 20, 40, 80, 200])
def test_no_line_is_wider_than_the_terminal_and_no_column_is_lost(width: int) -> None:
    count = 90
    weights = [[(row == column) * 1.0 for column in range(count)] for row in range(3)]
    lines = list(heatmap_lines(weights, ["row"] * 3, [f"{column_name}" for column_name in range(count)], width=width))
    page_heading = re.compile(r"columns (\d+) to (\d+) of 90 \(page (\d+) of (\d+)\)")
    pages = [page for line in lines if (page := page_heading.fullmatch(line))]
    if width == 200:
        assert not pages
        return
    covered = [column for page in pages for column in range(int(page[1]), int(page[2]) + 1)]
    assert covered == list(range(1, count + 1))
    assert [int(page[3]) for page in pages] == list(range(1, int(pages[0][4]) + 1))
    maps = [line for line in lines[:-1] if not line.startswith("columns")]
    assert max(map(len, maps)) <= max(width, len("row ") + 2)


def test_darker_cells_are_larger_and_long_labels_are_cut() -> None:
    steps = [[share / 100 for share in range(101)]]
    cells = next(line for line in heatmap_lines(steps, ["x" * 40], ["y" * 40] * 101, width=300) if line.startswith("x"))
    assert cells.startswith("x" * 11 + "… ")
    order = [SHADES.index(cell) for cell in cells[13:][::2]]
    assert order == sorted(order)
    assert set(order) == set(range(5))
    assert not any("█" in line for line in list(heatmap_lines([[0.0]], ["a"], ["b"], width=20))[:-1])


def test_a_terminal_without_blocks_gets_other_letters(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(io.BytesIO(), encoding="ascii"))
    lines = list(heatmap_lines(WEIGHTS, ["a", "b", "c"], ["a", "b", "c"], width=40))
    assert lines[1] == "a " + 2 * PLAIN[-1]
    assert all(line.isascii() for line in lines)
