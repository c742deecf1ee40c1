"""`paribus summary`: counts of a spec, and differences of two specs."""

from __future__ import annotations

import json
from typing import Any

import pytest

from paribus.cli.main import main


def summary(capsys: pytest.CaptureFixture[str], *words: str) -> Any:
    assert main(["summary", *words, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


@pytest.mark.parametrize(("preset", "parameters"), [("bert-base", 110_106_428), ("gpt2", 124_439_808)])
def test_a_published_model_has_its_published_size(
    capsys: pytest.CaptureFixture[str], preset: str, parameters: int
) -> None:
    assert summary(capsys, preset)["parameters"] == parameters


def test_what_was_published_stands_above_what_is_counted(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["summary", "bert-large"]) == 0
    text = capsys.readouterr().out
    assert text.startswith("bert-large: BERT large:")
    assert "340 M parameters" in text.splitlines()[0]
    assert "336,226,108" in text


def test_the_lines_add_up_to_the_whole(capsys: pytest.CaptureFixture[str]) -> None:
    document = summary(capsys, "seq2seq-tiny")
    assert sum(line["parameters"] for line in document["lines"]) == document["parameters"]
    assert sum(line["flops"] for line in document["lines"]) == pytest.approx(
        document["flops_per_token"] * document["length"]
    )


def test_sharing_keys_and_values_saves_exactly_their_part_of_the_cache(capsys: pytest.CaptureFixture[str]) -> None:
    whole = summary(capsys, "gpt-tiny")["cache_bytes_per_token"]
    assert whole == 2 * 2 * 4 * 16 * 4  # keys and values, layers, heads, head width, bytes
    assert summary(capsys, "gpt-tiny", "attention=mqa")["cache_bytes_per_token"] == whole / 4


def test_versus_shows_both_sides_and_what_differs(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["summary", "bert-tiny", "--versus", "attention=mqa"]) == 0
    text = capsys.readouterr().out
    assert "attention: mha" in text
    assert "→ mqa" in text
    assert "-5.1%" in text


def test_versus_takes_another_spec_as_well(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["summary", "gpt2", "--versus", "bert-base"]) == 0
    text = capsys.readouterr().out
    assert "topology: decoder → encoder" in text
    assert "124,439,808" in text
    assert "110,106,428" in text
