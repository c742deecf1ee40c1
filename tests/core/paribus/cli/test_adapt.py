"""`adapt` as its user sees it: a table, the damage, and a folder to go on with."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.core.paribus.cli.conftest import Said

import paribus

Cli = Callable[..., Said]

TINY = ("dims={width: 16, heads: 4, layers: 2, length: 16}", "data.validation=16", "trainer.max_steps=2")


@pytest.fixture
def gpt(cli: Cli) -> Path:
    said = cli("train", "gpt-tiny", *TINY, "--save", "gpt")
    assert said.code == 0
    assert "the model is also saved in gpt" in said.err
    return Path("gpt")


def test_a_part_is_swapped_and_the_damage_is_told(cli: Cli, gpt: Path) -> None:
    said = cli("adapt", "gpt", "attention=gqa", "attention.kv_heads=2", "--out", "gqa")
    lines = said.out.splitlines()
    assert lines[0].split() == ["kept", "bitwise", "28", "tensors", "(10,464", "numbers)"]
    assert " ".join(lines[1].split()) == "converted 8 tensors (544 numbers) k, v: 4 heads averaged in groups of 2"
    assert lines[3].startswith("val/clm/loss ")
    assert " -> " in lines[3]
    assert "; from scratch " in lines[3]
    assert paribus.load("gqa").spec["attention"]["name"] == "gqa"
    again = json.loads(cli("adapt", "gqa", "--json").out)
    assert again["damage"]["val/clm/loss"]["before"] == again["damage"]["val/clm/loss"]["after"]
    assert not any(again[kind] for kind in ("converted", "new", "dropped"))


def test_nothing_is_written_over(cli: Cli, gpt: Path) -> None:
    for words in (("adapt", "gpt", "--out", "gpt"), ("train", "gpt-tiny", *TINY, "--save", "gpt")):
        said = cli(*words)
        assert said.code == 5
        assert "`gpt` is not empty" in said.err


def test_what_is_new_and_what_is_dropped_is_named(cli: Cli, gpt: Path) -> None:
    said = cli("adapt", "gpt", "norm=rmsnorm", "attention={name: mha, scores: {qk_norm: true}}")
    lines = [" ".join(line.split()) for line in said.out.splitlines()]
    assert any(line.startswith("new 4 tensors (16 numbers)") and line.endswith(": all 1") for line in lines)
    assert any(line.startswith("dropped 5 tensors (80 numbers)") for line in lines)
