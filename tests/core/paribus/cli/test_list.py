"""`paribus list`: installed components by slot, presets and studies."""

import json
import re
from collections.abc import Callable
from typing import Any

import pytest

from paribus.hookspecs import SLOTS
from paribus.schema import from_json

Cli = Callable[..., Any]


def test_all_slots_are_listed_with_a_summary_of_each_component(cli: Cli) -> None:
    result = cli("list")
    assert result.code == 0
    headings = [line for line in result.out.splitlines() if line and not line.startswith(" ")]
    assert headings[: len(SLOTS)] == list(SLOTS)
    assert re.search(r"gqa +paribus 0.1.0  \w", result.out)


def test_one_slot_is_listed(cli: Cli) -> None:
    result = cli("list", "norm")
    assert result.out.splitlines()[0] == "norm"
    assert "layernorm" in result.out
    assert "gqa" not in result.out


@pytest.mark.few(6)
@pytest.mark.parametrize("slot", [*SLOTS, None])
def test_json_rows_have_the_same_keys(cli: Cli, slot: str | None) -> None:
    rows = json.loads(cli("list", *([slot] if slot else []), "--json").out)
    assert rows
    for row in rows:
        assert set(row) == {"slot", "name", "summary", "distribution", "options"}
        assert row["slot"] == (slot or row["slot"])
        assert row["summary"]
        assert row["distribution"].startswith("paribus ")
        assert all(from_json(option).doc for option in row["options"])


def test_presets_are_listed_with_the_comment_of_their_first_line(cli: Cli) -> None:
    assert "encoder-tiny" in cli("list").out
    rows = json.loads(cli("list", "presets", "--json").out)
    assert {"bert-base", "encoder-tiny", "gpt2"} <= {row["name"] for row in rows}
    assert all(row["summary"] and row["distribution"] for row in rows)


def test_studies_are_listed(cli: Cli) -> None:
    result = cli("list", "studies")
    assert result.code == 0
    assert result.out.splitlines()[0] == "studies"


def test_an_unknown_slot_is_refused_with_the_valid_slots(cli: Cli) -> None:
    result = cli("list", "atention")
    assert result.code == 2
    assert result.err.startswith("error[unknown-slot]: ")
    assert '"atention"; did you mean "attention"?' in result.err
