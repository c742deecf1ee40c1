"""Fixtures that run `paribus` and capture its output and exit code."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from paribus.cli.main import main
from paribus.registry import index


class CommandResult(NamedTuple):
    """Exit code and output of a run of `paribus`."""

    code: int
    out: str
    err: str


@pytest.fixture(scope="session", autouse=True)
def built_index() -> None:
    """Build the index first, so that no run prints that it builds it."""
    index()


@pytest.fixture
def cli(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., CommandResult]:
    """Run `paribus` in an empty folder."""
    folder = tmp_path / "here"
    folder.mkdir()
    monkeypatch.chdir(folder)

    def run(*words: str) -> CommandResult:
        capsys.readouterr()
        code = main(words)
        printed = capsys.readouterr()
        return CommandResult(code, printed.out, printed.err)

    return run


@pytest.fixture
def write_study(swap: Mapping[str, Any]) -> Callable[..., Path]:
    """Write the file of a study named `mine`, with changed keys: `write_study(seeds=3)`."""

    def write(**changes: Any) -> Path:
        path = Path("mine/study.yaml")
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps({**swap, **changes}))
        return path

    return write
