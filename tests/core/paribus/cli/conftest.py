"""The command as its user sees it: what it printed, where, and how it ended."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

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


@pytest.fixture
def written(swap: Mapping[str, Any]) -> Callable[..., Path]:
    """Writes the file of a study that is called `mine`: `written(seeds=3)` says so much otherwise."""

    def write(**changes: Any) -> Path:
        path = Path("mine/study.yaml")
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps({**swap, **changes}))
        return path

    return write
