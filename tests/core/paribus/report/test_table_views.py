"""Text of the cells of a table: digits of numbers, verdicts, costs and folded names."""

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paribus.analysis.compare import compare
from paribus.analysis.costs import LABELS, Cost
from paribus.analysis.formatting import TIMES, clean, format_count, format_difference, format_number, table_decimals
from paribus.analysis.table import Row, Table
from paribus.analysis.trials import ComparisonSpec, TrialEntry
from paribus.report.table_views import cost_text, fold_text, shown_costs, table_title, verdict_text

Ask = Callable[..., ComparisonSpec]
Study = Callable[..., list[TrialEntry]]

COSTS = {name: Cost(value=1234.0, ratio=0.5) for name in LABELS}


def row(variant: str = "mqa", **fields: Any) -> Row:
    defaults: dict[str, Any] = {
        "kind": "worse",
        "verdict": "worse",
        "n": 5,
        "planned": 5,
        "done": 5,
        "diverged": 0,
        "failed": 0,
    }
    return Row(**{"variant": variant, "mean": 2.0, "costs": COSTS, **defaults, **fields})


def table_with(*rows: Row, mean: float | None = 2.0) -> Table:
    baseline = row("baseline", kind="baseline", verdict="baseline", mean=mean)
    return Table(
        study="s", metric="val/mlm/loss", better="lower", margin=None, alpha=0.05, seeds=(0,), baseline=baseline,
        rows=rows, caption=(), warnings=(), notes=(), certificates={},
    )  # fmt: skip


@pytest.mark.parametrize(
    ("value", "decimals", "signed", "expected"),
    [
        (2.1534, 3, False, "2.153"),
        (0.0312, 3, True, "+0.031"),
        (-0.0312, 3, True, "-0.031"),
        (12345.6, 0, False, "12,346"),
        (12345.6, -2, True, "+12,346"),
        (1.234e-8, 9, True, "+1.23e-08"),
        (1.234e9, 2, False, "1.234e+09"),
        (None, 3, True, "-"),
    ],
)
def test_a_number_is_written_with_its_digits(value: float | None, decimals: int, signed: bool, expected: str) -> None:
    assert format_number(value, decimals, signed=signed) == expected


@given(middle=st.floats(-5, 5), half=st.floats(1e-4, 100))
def test_an_interval_has_two_digits_of_its_half_width(middle: float, half: float) -> None:
    table_row = row(difference=middle, low=middle - half, high=middle + half)
    digits = table_decimals(table_with(table_row))["mqa"]
    step = 10.0**-digits
    assert half >= 9.99 * step or digits <= 0
    assert half < 100.01 * step


def test_rows_have_the_same_decimals_unless_digits_would_be_lost() -> None:
    near = [row("a", difference=0.1, low=0.0, high=0.2), row("b", difference=0.1, low=0.09, high=0.11)]
    assert table_decimals(table_with(*near)) == {"baseline": 3, "a": 3, "b": 3}
    far = [row("a", difference=10.0, low=0.0, high=20.0), row("b", difference=0.1, low=0.0998, high=0.1002)]
    assert table_decimals(table_with(*far)) == {"baseline": 2, "a": 2, "b": 5}


def test_without_an_interval_the_difference_sets_the_decimals() -> None:
    assert table_decimals(table_with(row(difference=0.0312)))["mqa"] == 3
    assert table_decimals(table_with(row(difference=None))) == {"baseline": 3, "mqa": 3}
    assert table_decimals(table_with(row(difference=0.0), mean=None)) == {"baseline": 3, "mqa": 3}


def test_a_difference_is_shown_with_its_interval() -> None:
    assert format_difference(row(difference=0.031, low=0.012, high=0.05), 3) == "+0.031 [+0.012, +0.050]"
    assert format_difference(row(difference=0.031), 3) == "+0.031"
    assert format_difference(row(), 3) == "-"
    assert format_difference(row(kind="baseline"), 3) == ""


def test_a_count_shows_missing_seeds() -> None:
    assert format_count(row()) == "5"
    assert format_count(row(n=3)) == "3/5"


def test_a_verdict_is_shown_with_its_flags() -> None:
    assert verdict_text(row(learned=False, failed=1)) == "worse, did not learn, 1/5 failed"
    assert verdict_text(row(kind="diverged", verdict="diverged 1/5", diverged=1)) == "diverged 1/5"
    assert verdict_text(row(kind="withheld", verdict="withheld (x)", diverged=2)) == "withheld (x), 2/5 diverged"


@pytest.mark.parametrize(
    ("kind", "name", "cost", "expected"),
    [
        ("baseline", "parameters", Cost(value=36294, ratio=1.0), "36.3k"),
        ("baseline", "parameters", Cost(value=999_999, ratio=1.0), "1M"),
        ("baseline", "peak_bytes", Cost(value=455_532_544, ratio=1.0), "434M"),
        ("baseline", "cache_bytes_per_token", Cost(value=512, ratio=1.0), "512B"),
        ("baseline", "flops_per_token", Cost(value=12, ratio=1.0), "12"),
        ("baseline", "tokens_per_second", Cost(value=8123.0, ratio=None, rough=True), "~8.12k"),
        ("baseline", "parameters", Cost(value=None, ratio=None), "-"),
        ("worse", "parameters", Cost(value=1.0, ratio=0.918), "0.92x"),
        ("worse", "parameters", Cost(value=1.0, ratio=12.34), "12.3x"),
        ("worse", "parameters", Cost(value=1.0, ratio=0.0123), "0.0123x"),
        ("worse", "tokens_per_second", Cost(value=1.0, ratio=1.0, rough=True), "~1.00x"),
        ("worse", "parameters", Cost(value=1.0, ratio=None), "-"),
    ],
)
def test_a_cost_is_the_baselines_or_a_multiple_of_it(kind: Any, name: str, cost: Cost, expected: str) -> None:
    table_row = row(kind=kind, costs={**COSTS, name: cost})
    assert cost_text(table_row, name) == expected.replace("x", TIMES)


@given(value=st.floats(1, 1e20))
def test_an_amount_is_short_and_keeps_three_digits(value: float) -> None:
    text = cost_text(row(kind="baseline", costs={**COSTS, "parameters": Cost(value=value, ratio=1.0)}), "parameters")
    units = {"": 1.0, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15, "E": 1e18, "Z": 1e21}
    unit = text.lstrip("0123456789.e+")
    assert math.isclose(float(text.removesuffix(unit)) * units[unit], value, rel_tol=0.006)


def test_costs_without_values_have_no_column() -> None:
    missing_cost = {**COSTS, "cache_bytes_per_token": Cost(value=None, ratio=None)}
    table = table_with(row(costs=missing_cost))
    table = dataclasses.replace(table, baseline=dataclasses.replace(table.baseline, costs=missing_cost))
    assert shown_costs(table) == [name for name in LABELS if name != "cache_bytes_per_token"]
    assert shown_costs(table_with(row(costs=missing_cost))) == list(LABELS)


@pytest.mark.parametrize(
    ("name", "expected"), [("a\x1b[31mb", "a\\u001b[31mb"), ("a\nb", "a\\nb"), ("\u202egqa", "\\u202egqa")]
)
def test_control_characters_in_names_are_escaped(name: str, expected: str) -> None:
    assert clean(name) == expected


def test_the_title_states_the_better_direction(study: Study, ask: Ask) -> None:
    entries = study(baseline=[2.0], mqa=[2.1])
    assert table_title(compare(entries, ask(entries))) == "attention: val/mlm/loss, lower is better"


@pytest.mark.parametrize(
    ("text", "width", "lines"),
    [
        ("attention=restricted(window=16)", 40, ["attention=restricted(window=16)"]),
        ("attention=restricted(window=16)", 20, ["attention=restricted", "(window=16)"]),
        ("attention=restricted(window=16)", 14, ["attention=", "restricted", "(window=16)"]),
        ("inconclusive (needs n ≥ 12), did not learn", 28, ["inconclusive (needs n ≥ 12),", "did not learn"]),
        ("withheld (another difference; leaked seed)", 20, ["withheld", "(another difference;", "leaked seed)"]),
        ("trainer.precision=bf16", 13, ["trainer.", "precision=", "bf16"]),
        ("trainer.precision=bf16", 14, ["trainer.", "precision=bf16"]),
        ("a" * 9, 4, ["aaaa", "aaaa", "a"]),
        ("", 4, [""]),
    ],
)
def test_text_is_folded_at_word_boundaries(text: str, width: int, lines: list[str]) -> None:
    assert fold_text(text, width).split("\n") == lines


@given(text=st.text(st.sampled_from("ab=(), "), max_size=30), width=st.integers(4, 20))
def test_folding_loses_nothing_but_spaces(text: str, width: int) -> None:
    lines = fold_text(text, width).split("\n")
    assert max(map(len, lines)) <= width
    assert "".join(lines).replace(" ", "") == text.replace(" ", "")
