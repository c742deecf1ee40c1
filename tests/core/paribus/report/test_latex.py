"""LaTeX tables: escaped special characters, closed braces and environments."""

import re
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.fixtures.problems import raises_problem

from paribus.analysis.compare import compare
from paribus.analysis.formatting import Cell, Column, Grid, clean
from paribus.analysis.trials import ComparisonSpec, TrialEntry
from paribus.errors import SpecError
from paribus.report.latex import latex
from paribus.report.latex_text import LETTERS, escaped
from paribus.report.table_views import study_grid, to_csv

Make = Callable[..., TrialEntry]
Ask = Callable[..., ComparisonSpec]
Study = Callable[..., list[TrialEntry]]

NASTY = "50% of $x_{1}^2$ & \\input{/etc/passwd} #1 ~ <a|b> \"q\" --``''"
BACK = {value: key for key, value in sorted(LETTERS.items(), key=lambda pair: -len(pair[1]))}


def told(source: str) -> str:
    """Return the text that LaTeX prints for the output of `escaped`; fail on other special characters."""
    text, index = "", 0
    while index < len(source):
        command = next((key for key in BACK if source.startswith(key, index)), "")
        if command:
            text, index = text + BACK[command], index + len(command)
            continue
        if source.startswith("{}", index):  # breaks a ligature
            index += 2
            continue
        accent = re.match(r"\\.\{[A-Za-z]\}", source[index:])
        if accent:
            text, index = text + "?", index + len(accent[0])
            continue
        assert source[index] not in "\\{}$&#_%~^", f"{source[index]} in {source}"
        assert source[index].isascii()
        text, index = text + source[index], index + 1
    return text


@given(st.text(alphabet=st.characters(codec="ascii")))
def test_text_is_printed_as_it_is(text: str) -> None:
    assert told(escaped(text)) == clean(text)


@given(st.text())
def test_special_characters_of_latex_are_escaped(text: str) -> None:
    told(escaped(text))


@given(st.text(alphabet="-'x"))
def test_hyphens_and_quotes_do_not_form_ligatures(text: str) -> None:
    assert "--" not in escaped(text)
    assert "''" not in escaped(text)


@pytest.mark.parametrize(
    ("text", "expected"), [("é", r"\'{e}"), ("ö", r"\"{o}"), ("中", "U+4E2D"), ("≥ 3", r"$\geq$ 3")]
)
def test_letters_beyond_ascii_become_commands_or_code_points(text: str, expected: str) -> None:
    assert escaped(text) == expected


@pytest.fixture(name="source", scope="module")
def _source(make: Make, ask: Ask, study: Study) -> str:
    base = [2.00, 2.10, 1.90, 2.05, 1.95]
    entries = study(baseline=base, mqa=[value + 0.5 + index / 100 for index, value in enumerate(base)], gqa=base[::-1])
    entries += [make(NASTY, seed, varied={"norm": "rmsnorm"}, loss=1.9 + seed / 50) for seed in range(5)]
    entries += [make("[*", seed, varied={"norm": "rmsnorm"}, loss=1.9 + seed / 50) for seed in range(5)]
    return latex(study_grid(compare(entries, ask(entries))), "attention")


def test_braces_and_environments_are_closed(source: str) -> None:
    bare = re.sub(r"\\[\\{}$&#_%]", "", source)
    depth = 0
    for letter in bare:
        depth += {"{": 1, "}": -1}.get(letter, 0)
        assert depth >= 0
    assert depth == 0
    assert bare.count("$") % 2 == 0
    opened = re.findall(r"\\begin\{([\w*]+)\}", source)
    assert opened == ["table", "tabular", "minipage", "table*", "tabular", "minipage"]
    assert sorted(re.findall(r"\\end\{([\w*]+)\}", source)) == sorted(opened)


def test_every_row_has_as_many_cells_as_there_are_columns(source: str) -> None:
    main = source.partition("table*")[0]
    columns = re.search(r"\\begin\{tabular\}\{@\{\}(.+)@\{\}\}", main)
    assert columns is not None
    rows = [line for line in main.splitlines() if line.startswith("    ") and line.endswith(r"\\")]
    assert len(rows) == 6  # the header, the baseline, four variants
    count = len(re.sub(r"p\{\d+pt\}", "p", columns[1]))
    assert {len(re.findall(r"(?<!\\)&", row)) + 1 for row in rows} == {count}
    assert not any(re.match(r"\s*[\[*]", row) for row in rows)  # the row before would take it for an argument


def test_the_caption_is_short_and_states_n_confidence_and_correction(source: str) -> None:
    caption = next(line for line in source.splitlines() if r"\caption" in line)
    for words in (r"95 \% confidence", "Holm over 4 variants", "n = 5", "Student-t"):
        assert words in caption
    assert len(caption.split("]{")[1].split()) < 60
    comments = " ".join(line.removeprefix("%   ") for line in source.splitlines() if line.startswith("%"))
    assert "100 steps" in comments  # what else there is to say stands above the table


def test_a_long_verdict_is_short_with_a_note() -> None:
    grid = Grid(
        title="s: loss",
        columns=[Column("variant", wrap="name"), Column("verdict", wrap="verdict")],
        rows=[
            [Cell("mqa"), Cell("inconclusive (needs n ≥ ~9 [6, 42])", "inconclusive")],
            [Cell("gqa"), Cell("better, 1/5 failed, did not learn", "better")],
            [Cell("mla"), Cell("inconclusive (needs n ≥ ~9 [6, 42])", "inconclusive")],
        ],
    )
    source = latex(grid, "s")
    assert source.count(r"inconclusive\textsuperscript{a}") == 2
    assert r"\textbf{better}\textsuperscript{b}" in source
    assert r"\textsuperscript{b}\,1/5 failed, did not learn" in source


@pytest.mark.parametrize(("width", "parts"), [(345, 1), (241, 2), (120, 4)])
def test_a_table_too_wide_for_the_text_is_split_and_keeps_every_column_once(width: int, parts: int) -> None:
    names = [f"measure-{letter}" for letter in "abcdefg"]
    columns = [Column("variant", wrap="name"), *(Column(name, align_right=True) for name in names)]
    rows = [[Cell(name), *(Cell("1,234") for _ in names)] for name in ("baseline", "attention=mqa")]
    source = latex(Grid(title="costs", columns=columns, rows=rows), "s", width)
    headings = [line.strip(" \\").split(" & ") for line in source.splitlines() if line.startswith("    variant")]
    assert [name for heading in headings for name in heading[1:]] == names
    assert source.count(r"\begin{table}") == source.count("attention=") == parts
    assert all(f"part {number} of {parts}" in source for number in range(1, parts + 1 if parts > 1 else 1))
    assert "no layout" not in source


def test_a_table_that_fits_in_no_way_says_so() -> None:
    grid = Grid(
        title="s", columns=[Column("variant"), Column("value", align_right=True)], rows=[[Cell("a"), Cell("1" * 90)]]
    )
    assert "no layout of these columns fits into 150pt" in latex(grid, "s", 150)


def test_columns_are_chosen_by_key_or_heading_in_order(make: Make, ask: Ask, study: Study) -> None:
    entries = study(baseline=[2.0, 2.1, 1.9], mqa=[2.2, 2.3, 2.1])
    table = compare(entries, ask(entries))
    assert "verdict & n & params \\\\" in latex(study_grid(table, ["verdict", "n", "params"]), "s")
    assert [column.id for column in study_grid(table, ["loss", "parameters"]).columns] == ["mean", "parameters"]
    csv_text = to_csv(study_grid(table).records, ["difference", "variant"])
    assert csv_text.splitlines()[:2] == ["difference,variant", ",baseline"]
    for call in (
        lambda: study_grid(table, ["varient", "x"]),
        lambda: to_csv(study_grid(table).records, ["varient", "x"]),
    ):
        with raises_problem(SpecError, "unknown-column", "varient", "variant") as error:
            call()
        assert [(problem.code, problem.suggestion) for problem in error.value.problems] == [
            ("unknown-column", "variant"),
            ("unknown-column", ""),
        ]
    with raises_problem(SpecError, "unknown-column", "columns"):
        study_grid(table, [])


def test_minus_signs_and_hyphens_differ(source: str) -> None:
    assert "[$-$0" in source
    assert "Student-t" in source


def test_the_csv_has_numbers_and_no_formulas(make: Make, ask: Ask, study: Study) -> None:
    import csv
    import io

    entries = study(baseline=[2.0, 2.1, 1.9])
    entries += [make("=HYPERLINK(1)", seed, varied={"norm": "rmsnorm"}, loss=1.9) for seed in range(3)]
    rows = list(csv.DictReader(io.StringIO(to_csv(study_grid(compare(entries, ask(entries))).records))))
    assert [row["variant"] for row in rows] == ["baseline", "'=HYPERLINK(1)"]
    assert float(rows[1]["difference"]) == pytest.approx(-0.1)
    assert rows[0]["difference"] == ""
