"""Tool that freezes the text of `python-docs`: docstrings and copyright notices of a standard library."""

import gzip
import json
import sys
from pathlib import Path

from tools.freeze_python_docs import docstrings, notices, write_texts


def test_each_module_is_a_document_in_order_of_names(tmp_path: Path) -> None:
    (tmp_path / "b.py").write_text(
        '"""The module b."""\nclass C:\n    """A\n       class."""\n    def f(self):\n        "Does it."\n'
    )
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "__init__.py").write_text('"""The package a."""\nasync def g():\n    """Waits."""\n')
    assert docstrings(tmp_path) == {
        "module a": "The package a.\n\nWaits.",
        "module b": "The module b.\n\nA\nclass.\n\nDoes it.",
    }
    assert list(docstrings(tmp_path)) == ["module a", "module b"]


def test_tests_and_installed_packages_are_left_out(tmp_path: Path) -> None:
    for folder in ("test", "site-packages", "json/tests"):
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / "x.py").write_text('"""Not for reading."""')
    assert docstrings(tmp_path) == {}


def test_a_module_is_parsed_but_not_imported(tmp_path: Path) -> None:
    (tmp_path / "loud.py").write_text('"""Loud."""\nraise SystemExit("it was run")\n')
    assert docstrings(tmp_path) == {"module loud": "Loud."}
    assert "loud" not in sys.modules


def test_a_file_with_syntax_errors_is_skipped(tmp_path: Path) -> None:
    (tmp_path / "broken.py").write_text("def (")
    (tmp_path / "bytes.py").write_bytes(b'"""\xff"""')
    (tmp_path / "silent.py").write_text("x = 1")
    assert docstrings(tmp_path) == {}


def test_a_notice_names_the_modules_whose_docstrings_it_covers(tmp_path: Path) -> None:
    for name in "ab":
        (tmp_path / f"{name}.py").write_text('#!/bin/python\n\n# Copyright 1999 C.  \n# Free.\n"""Does it."""\n# no\n')
    (tmp_path / "c.py").write_text('"""Parses."""\n__copyright__ = """\nCopyright 2001 D.\n"""\n')
    (tmp_path / "silent.py").write_text("# Copyright 2000 E.\nx = 1\n")
    assert notices(tmp_path).split("\n\n")[1:] == [
        "a, b",
        "# Copyright 1999 C.\n# Free.",
        "c",
        '__copyright__ = """\nCopyright 2001 D.\n"""\n',
    ]


def test_the_same_texts_give_the_same_file(tmp_path: Path) -> None:
    for texts in ({"b": "2", "a": "\u00e4"}, {"a": "\u00e4", "b": "2"}):
        write_texts(tmp_path / "x.gz", texts)
        (tmp_path / f"{next(iter(texts))}.gz").write_bytes((tmp_path / "x.gz").read_bytes())
    assert (tmp_path / "a.gz").read_bytes() == (tmp_path / "b.gz").read_bytes()
    assert json.loads(gzip.decompress((tmp_path / "a.gz").read_bytes())) == {"a": "\u00e4", "b": "2"}
