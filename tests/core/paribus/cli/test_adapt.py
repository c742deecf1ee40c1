"""`paribus adapt`: its table, the loss change, and the saved model."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.core.paribus.cli.conftest import CommandResult

import paribus

Cli = Callable[..., CommandResult]

TINY = ("dims={width: 16, heads: 4, layers: 2, length: 16}", "data.validation=16", "trainer.max_steps=2")


@pytest.fixture
def gpt(cli: Cli) -> Path:
    result = cli("train", "gpt-tiny", *TINY, "--save", "gpt")
    assert result.code == 0
    assert "the model is also saved in gpt" in result.err
    return Path("gpt")


def test_a_part_is_swapped_and_the_loss_change_is_printed(cli: Cli, gpt: Path) -> None:
    result = cli("adapt", "gpt", "attention=gqa", "attention.kv_heads=2", "--out", "gqa")
    lines = result.out.splitlines()
    assert lines[0].split() == ["kept", "bitwise", "28", "tensors", "(10,464", "numbers)"]
    assert " ".join(lines[1].split()) == "converted 8 tensors (544 numbers) k, v: 4 heads averaged in groups of 2"
    assert lines[3].startswith("val/clm/loss ")
    assert " -> " in lines[3]
    assert "; from scratch " in lines[3]
    assert paribus.load("gqa").spec["attention"]["name"] == "gqa"
    unchanged = json.loads(cli("adapt", "gqa", "--json").out)
    assert unchanged["loss_changes"]["val/clm/loss"]["before"] == unchanged["loss_changes"]["val/clm/loss"]["after"]
    assert not any(unchanged[kind] for kind in ("converted", "new", "dropped"))


@pytest.mark.thorough
def test_files_are_never_overwritten(cli: Cli, gpt: Path) -> None:
    for words in (("adapt", "gpt", "--out", "gpt"), ("train", "gpt-tiny", *TINY, "--save", "gpt")):
        result = cli(*words)
        assert result.code == 5
        assert "error[not-empty] (gpt)" in result.err


@pytest.mark.thorough
def test_new_and_dropped_tensors_are_listed(cli: Cli, gpt: Path) -> None:
    result = cli("adapt", "gpt", "norm=rmsnorm", "attention={name: mha, scores: {qk_norm: true}}")
    lines = [" ".join(line.split()) for line in result.out.splitlines()]
    assert any(line.startswith("new 4 tensors (16 numbers)") and line.endswith(": all 1") for line in lines)
    assert any(line.startswith("dropped 5 tensors (80 numbers)") for line in lines)
