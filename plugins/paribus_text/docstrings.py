"""The standard library's docstrings, read from its source files without importing them."""

from __future__ import annotations

import ast
import inspect
import sysconfig
import tokenize
from collections.abc import Iterator
from pathlib import Path

# Tests and demonstrations, what is generated, what others installed, and the topics themselves.
_LEFT_OUT = {"test", "tests", "idlelib", "lib2to3", "turtledemo", "site-packages", "dist-packages", "pydoc_data"}


def docstrings() -> dict[str, str]:
    """Each module's docstrings as one text, by the module's name."""
    root = Path(sysconfig.get_paths()["stdlib"])
    texts: dict[str, str] = {}
    for path in sorted(root.rglob("*.py")):
        parts = path.relative_to(root).with_suffix("").parts
        if _LEFT_OUT.isdisjoint(parts) and not parts[0].startswith(("config-", "_sysconfigdata")):
            text = "\n\n".join(_of(path))
            if text:
                texts["module " + ".".join(parts).removesuffix(".__init__")] = text
    return texts


def _of(path: Path) -> Iterator[str]:
    """The docstrings of one file, in the order of its text."""
    try:
        with tokenize.open(path) as file:
            tree = ast.parse(file.read())
    except (SyntaxError, UnicodeDecodeError, OSError):  # a distribution's own broken file is nobody's corpus
        return
    kinds = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    for node in ast.walk(tree):
        if isinstance(node, kinds):
            text = ast.get_docstring(node, clean=False)
            if text and text.strip():
                yield inspect.cleandoc(text)
