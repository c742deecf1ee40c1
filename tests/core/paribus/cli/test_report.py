"""`paribus report`: the page that it writes, and files that it never overwrites."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from paribus.errors import EXIT_NOT_COMPARABLE, EXIT_STORE

STUDY = """
base: {preset: encoder-tiny, dims: {width: 16, layers: 1, heads: 4, length: 16}, data: {batch: 4, validation: 8}}
vary: {attention: [mqa]}
seeds: 2
budget: {steps: 2}
metric: {name: val/mlm/loss}
"""


def test_a_study_without_records_has_no_page(cli: Callable[..., Any]) -> None:
    Path("study.yaml").write_text(STUDY)
    result = cli("report", "study.yaml")
    assert result.code == EXIT_NOT_COMPARABLE
    assert "error[no-records]" in result.err
    assert list(Path().glob("*.html")) == []


def test_only_a_page_of_this_command_is_overwritten(cli: Callable[..., Any]) -> None:
    Path("study.yaml").write_text(STUDY)
    original = Path("study.yaml").read_bytes()
    for name in ("study.yaml", ".", os.devnull):
        result = cli("report", "study.yaml", "-o", name)
        assert result.code == EXIT_STORE
        assert f"error[not-empty] ({name})" in result.err
    assert Path("study.yaml").read_bytes() == original
