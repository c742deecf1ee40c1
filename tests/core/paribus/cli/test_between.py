"""`paribus between`: two studies that are valid as they are written, and one error where there are none."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Cli = Callable[..., Any]


@pytest.mark.thorough
def test_the_written_studies_are_valid_and_say_what_they_hold(cli: Cli) -> None:
    result = cli("between", "lstm-lm-tiny", "llama-tiny", "--seeds", "3")
    assert result.code == 0, result.err
    path = Path("lstm-lm-tiny-to-llama-tiny.yaml")
    assert "# Held at the value of the first" in path.read_text(encoding="utf-8")
    assert "dims.length: 64 in the second" in result.out
    for study in (path, path.with_name("lstm-lm-tiny-to-llama-tiny-without.yaml")):
        checked = cli("check", str(study), "--json")
        assert checked.code == 0, checked.err
        assert len(json.loads(checked.out)["variants"]) > 6


@pytest.mark.thorough
def test_rungs_are_matched_and_an_existing_file_is_kept(cli: Cli) -> None:
    words = ("between", "gpt2-tiny", "llama-tiny", "-o", "out")
    assert cli(*words, "--json").code == 0
    written = Path("out/gpt2-tiny-to-llama-tiny.yaml")
    assert "params, by: feedforward.inner" in written.read_text(encoding="utf-8")
    again = cli(*words)
    assert again.code != 0
    assert "exists" in again.err


def test_specs_without_a_common_objective_are_one_error(cli: Cli) -> None:
    result = cli("between", "bert-tiny", "gpt2-tiny")
    assert (result.code, list(Path().iterdir())) == (2, [])
    assert result.err.count("error[") == 1
    assert "no-common-objective" in result.err
