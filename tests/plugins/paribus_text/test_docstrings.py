"""Corpus of the standard library's docstrings."""

import sys
import sysconfig
from pathlib import Path

import pytest

from paribus_text.docstrings import docstrings


@pytest.fixture
def library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(sysconfig, "get_paths", lambda: {"stdlib": str(tmp_path)})
    return tmp_path


def test_each_module_is_a_document_in_order_of_names(library: Path) -> None:
    (library / "b.py").write_text(
        '"""The module b."""\nclass C:\n    """A\n       class."""\n    def f(self):\n        "Does it."\n'
    )
    (library / "a").mkdir()
    (library / "a" / "__init__.py").write_text('"""The package a."""\nasync def g():\n    """Waits."""\n')
    assert docstrings() == {
        "module a": "The package a.\n\nWaits.",
        "module b": "The module b.\n\nA\nclass.\n\nDoes it.",
    }
    assert list(docstrings()) == ["module a", "module b"]


def test_tests_and_installed_packages_are_left_out(library: Path) -> None:
    for folder in ("test", "site-packages", "json/tests"):
        (library / folder).mkdir(parents=True)
        (library / folder / "x.py").write_text('"""Not for reading."""')
    assert docstrings() == {}


def test_a_module_is_parsed_but_not_imported(library: Path) -> None:
    (library / "loud.py").write_text('"""Loud."""\nraise SystemExit("it was run")\n')
    assert docstrings() == {"module loud": "Loud."}
    assert "loud" not in sys.modules


def test_a_file_with_syntax_errors_is_skipped(library: Path) -> None:
    (library / "broken.py").write_text("def (")
    (library / "bytes.py").write_bytes(b'"""\xff"""')
    (library / "silent.py").write_text("x = 1")
    assert docstrings() == {}
