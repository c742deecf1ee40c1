"""`paribus compare-values`: verdicts of a file of numbers."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from paribus.errors import EXIT_DATA, EXIT_FAILED, EXIT_OK, EXIT_SPEC

Cli = Callable[..., Any]
LINES = ("variant,seed,loss,speed", "a,0,2.41,9", "a,1,2.44,8", "a,2,2.40,9", "b,0,2.38,1", "b,1,2.40,2", "b,2,2.37,1")


@pytest.fixture
def file(tmp_path: Path) -> str:
    path = tmp_path / "results.csv"
    path.write_text("\n".join(LINES) + "\n")
    return str(path)


def test_the_verdicts_are_printed_in_every_format(cli: Cli, file: str) -> None:
    text = cli("compare-values", file, "--metric", "loss", "--margin", "0.01")
    assert text.code == EXIT_OK
    assert "better" in text.out
    assert "Not certified" in text.out
    document = json.loads(cli("compare-values", file, "--metric", "loss", "--json").out)
    assert [row["variant"] for row in document["rows"]] == ["b"]
    assert "| `b` |" in cli("compare-values", file, "--metric", "loss", "--markdown").out
    assert r"\toprule" in cli("compare-values", file, "--metric", "loss", "--latex").out
    assert cli("compare-values", file, "--metric", "loss", "--csv").out.startswith("variant,")


def test_the_page_has_the_verdicts_a_chart_and_no_trials(cli: Cli, file: str) -> None:
    words = ("compare-values", file, "--metric", "loss", "-o", "page.html")
    assert cli(*words).code == EXIT_OK
    page = Path("page.html").read_text()
    assert page.count("Not certified") == 1
    assert page.count("<figure") == 1
    assert "is better than the baseline" in page
    assert "<h2>Trials</h2>" not in page
    assert cli(*words).code == EXIT_OK  # its own page is written anew
    assert cli("compare-values", file, "--metric", "loss", "-o", file).code != EXIT_OK
    assert Path(file).read_text().startswith("variant,")


def test_a_gate_fails_on_a_worse_value(cli: Cli, file: str) -> None:
    words = ("compare-values", file, "--metric", "speed", "--better", "higher", "--fail-if", "worse:1")
    assert cli(*words).code == EXIT_FAILED


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (("missing.csv",), EXIT_DATA, "missing.csv"),
        (("results.txt",), EXIT_DATA, "format .txt"),
        (("{file}",), EXIT_DATA, "loss, speed"),
        (("{file}", "--metric", "loss", "--baseline", "c"), EXIT_SPEC, "a, b"),
        (("{file}", "--metric", "loss", "--margin", "-1"), EXIT_SPEC, "margin"),
    ],
)
def test_bad_input_is_one_clear_error(cli: Cli, file: str, words: tuple[str, ...], code: int, message: str) -> None:
    result = cli("compare-values", *(word.format(file=file) for word in words))
    assert result.code == code
    assert message in result.err
    assert result.err.startswith("error[")


def test_compare_names_the_command_for_a_table_of_numbers(cli: Cli, file: str) -> None:
    result = cli("compare", file)
    assert result.code == EXIT_SPEC
    assert f"paribus compare-values {file}" in result.err
