"""The command as its user sees it: what it printed, where, and how it ended."""

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from paribus.cli.main import main
from paribus.registry import index


class Said(NamedTuple):
    """How a run of `paribus` ended."""

    code: int
    out: str
    err: str


@pytest.fixture(scope="session", autouse=True)
def derived() -> None:
    """The index is there, so that no run tells of making it."""
    index()


@pytest.fixture
def cli(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Said]:
    """Runs `paribus` in an empty folder."""
    folder = tmp_path / "here"
    folder.mkdir()
    monkeypatch.chdir(folder)

    def run(*words: str) -> Said:
        capsys.readouterr()
        code = main(words)
        printed = capsys.readouterr()
        return Said(code, printed.out, printed.err)

    return run
