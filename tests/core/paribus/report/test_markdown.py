"""Markdown tables as GitHub renders them."""

import re
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from paribus.analysis.compare import compare
from paribus.analysis.table import Table
from paribus.analysis.trials import ComparisonSpec, TrialEntry
from paribus.report.markdown import code, escaped, markdown

Make = Callable[..., TrialEntry]
Ask = Callable[..., ComparisonSpec]
Study = Callable[..., list[TrialEntry]]

NASTY = "a|b`c``d*e_f<g>#[h](i)\\j"


def shown(text: str) -> list[str]:
    """The text of every inline piece, as a reader sees it."""
    inline = (token for token in MarkdownIt().enable("table").parse(text) if token.type == "inline")
    return ["".join(child.content for child in token.children or ()) for token in inline]


@pytest.fixture(name="table", scope="module")
def _table(make: Make, ask: Ask, study: Study) -> Table:
    base = [2.00, 2.10, 1.90, 2.05, 1.95]
    entries = study(baseline=base, mqa=[value + 0.5 + index / 100 for index, value in enumerate(base)], gqa=base[::-1])
    entries += study(rmsnorm=["diverged", 2.0, 2.0, "failed", "pending"])
    entries += [make(NASTY, seed, varied={"norm": "rmsnorm"}, loss=1.9 + seed / 50) for seed in range(5)]
    return compare(entries, ask(entries))


def test_every_variant_has_one_line_with_its_verdict(table: Table) -> None:
    pieces = shown(markdown(table))
    for row in (table.baseline, *table.rows):
        index = pieces.index(row.name)
        assert pieces[index + 4] == ", ".join((row.verdict, *row.flags))
        assert pieces[index + 1] == (str(row.n) if row.n == row.planned else f"{row.n}/{row.planned}")


def test_every_line_of_the_table_has_the_same_columns(table: Table) -> None:
    lines = [line for line in markdown(table).splitlines() if line.startswith("|")]
    assert len(lines) == 2 + 1 + len(table.rows)
    assert len({len(re.findall(r"(?<!\\)\|", line)) for line in lines}) == 1


def test_all_that_must_be_read_with_it_is_there(table: Table) -> None:
    pieces = shown(markdown(table))
    for line in (*table.notes, *table.caption):
        assert line in pieces
    for line in table.warnings:
        assert f"! {line}" in pieces
    for name, certificate in table.certificates.items():
        assert f"✓ {name}: {certificate.text}" in pieces


def test_the_heading_is_of_the_level_that_was_asked_for(table: Table) -> None:
    assert markdown(table).startswith("## attention: val/mlm/loss, lower is better\n")
    assert markdown(table, heading=4).startswith("#### attention")
    assert markdown(table).endswith("\n")


@given(text=st.text(st.sampled_from("ab`|*_<>[]()#~\\ !&"), min_size=1, max_size=12).map(lambda text: f"x{text}x"))
def test_text_is_shown_as_it_is(text: str) -> None:
    (piece,) = shown(escaped(text))
    assert piece == text


@given(text=st.text(st.sampled_from("ab`*_<>[]|"), min_size=1, max_size=12))
def test_a_name_is_shown_as_it_is_in_a_cell_of_a_table(text: str) -> None:
    (_, piece) = shown(f"| head |\n| -- |\n| {code(text, cell=True)} |")
    assert piece == text


def test_control_characters_are_escaped() -> None:
    assert code("a\x1b\nb") == "`a\\u001b\\nb`"
    assert escaped("a\x1b\nb") == "a\\\\u001b\\\\nb"
