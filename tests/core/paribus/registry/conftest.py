"""Temporary plugin distributions, installed into a folder on the import path."""

import importlib
from dataclasses import dataclass
from pathlib import Path
from textwrap import dedent

import pytest

POEMS = '''
from collections.abc import Iterator, Mapping
from typing import Annotated

from paribus import Corpus, Document, Range, hookimpl


class Poems(Corpus):
    """Poems, which nobody reads."""

    def __init__(self, *, lines: Annotated[int, "lines of each", Range(1)] = 4) -> None:
        self.lines = lines

    def documents(self, split):
        yield Document("one", ("line",) * self.lines)

    def fingerprint(self):
        return str(self.lines)


@hookimpl
def corpus():
    return {"NAME": Poems}
'''


@dataclass(frozen=True)
class Site:
    """Folder on the import path into which distributions are installed."""

    folder: Path

    def add(self, distribution: str, source: str, *, version: str = "1.0", needs: str = "", point: str = "") -> str:
        """Install a distribution of one module and return the name of the module, which is also its entry point."""
        module = distribution.replace("-", "_")
        (self.folder / f"{module}.py").write_text(dedent(source))
        info = self.folder / f"{module}-{version}.dist-info"
        info.mkdir()
        requires = f"Requires-Dist: {needs}\n" if needs else ""
        info.joinpath("METADATA").write_text(
            f"Metadata-Version: 2.1\nName: {distribution}\nVersion: {version}\n{requires}"
        )
        info.joinpath("entry_points.txt").write_text(f"[paribus]\n{point or module} = {module}\n")
        importlib.invalidate_caches()
        return module


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Site:
    folder = tmp_path / "site"
    folder.mkdir()
    monkeypatch.syspath_prepend(folder)
    return Site(folder)


@pytest.fixture
def poems() -> str:
    """Return the source of a plugin that registers the corpus `poems`."""
    return POEMS.replace("NAME", "poems")
