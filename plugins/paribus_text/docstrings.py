"""The standard library's docstrings, read from its source files without importing them."""

from __future__ import annotations

import ast
import inspect
import sysconfig
import tokenize
from collections.abc import Iterator
from pathlib import Path

# Tests, demonstrations, generated and installed packages, and the topics of the reference.
_EXCLUDED = {"test", "tests", "idlelib", "lib2to3", "turtledemo", "site-packages", "dist-packages", "pydoc_data"}


def docstrings() -> dict[str, str]:
    """Return the docstrings of each module as one text, by the name of the module."""
    root = Path(sysconfig.get_paths()["stdlib"])
    texts: dict[str, str] = {}
    for path in sorted(root.rglob("*.py")):
        parts = path.relative_to(root).with_suffix("").parts
        if _EXCLUDED.isdisjoint(parts) and not parts[0].startswith(("config-", "_sysconfigdata")):
            text = "\n\n".join(_read(path))
            if text:
                texts["module " + ".".join(parts).removesuffix(".__init__")] = text
    return texts


def _read(path: Path) -> Iterator[str]:
    """Yield the docstrings of one file, in breadth-first order."""
    try:
        with tokenize.open(path) as file:
            tree = ast.parse(file.read())
    except (SyntaxError, UnicodeDecodeError, OSError):  # skips a broken file of the distribution
        return
    kinds = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    for node in ast.walk(tree):
        if isinstance(node, kinds):
            text = ast.get_docstring(node, clean=False)
            if text and text.strip():
                yield inspect.cleandoc(text)
