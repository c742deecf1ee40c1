"""Import closure of a source file: the modules of its own package that it imports, directly or not."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

_WORD = re.compile(rb"\bimport\b")
_STATEMENT = re.compile(
    rb"^[ \t]*(?:from[ \t]+([\w.]+)[ \t]+)?import[ \t]+([\w.*, \t]+|\([^()]*\))[ \t]*(?:#[^\n]*)?\r?$", re.MULTILINE
)
_COMMENT = re.compile(rb"#[^\n]*")
_NAME = re.compile(rb"\s*(?:([\w.]+|\*)(?:\s+as\s+\w+)?)?\s*")


class Import(NamedTuple):
    """An import statement: `from BASE import NAMES`, or `import NAMES` with an empty base. BASE keeps its dots."""

    base: str
    names: tuple[str, ...]


@lru_cache(maxsize=1024)
def closure(file: Path) -> frozenset[Path]:
    """Return `file` and all files of its top-level package that it imports, directly or not."""
    root = _source_root(file)
    visited: set[Path] = set()
    queue = [file.resolve()]
    while queue:
        path = queue.pop()
        if path not in visited:
            visited.add(path)
            queue.extend(_imported_files(path, root))
    return frozenset(visited)


def _source_root(file: Path) -> Path:
    """Return the folder that holds the top-level package."""
    folder = file.resolve().parent
    while (folder / "__init__.py").exists():
        folder = folder.parent
    return folder


def _imported_files(path: Path, root: Path) -> Iterator[Path]:
    package = path.relative_to(root).parts[:-1]
    source = path.read_bytes()
    if not package or (package[0].encode() not in source and b"from ." not in source):
        return  # no import from the file's own package
    for base, names in imports(source):
        for module in _modules(base, names, package):
            if module.partition(".")[0] == package[0]:
                yield from _module_files(module, root, package[0])


def _modules(base: str, names: tuple[str, ...], package: tuple[str, ...]) -> Iterator[str]:
    """Yield the modules that an import may load: the base, and each name that may be a module in it."""
    module = base.lstrip(".")
    if level := len(base) - len(module):
        module = ".".join(filter(None, [*package[: len(package) - level + 1], module]))
    if base:
        yield module
    yield from (f"{module}.{name}" if base else name for name in names)


def imports(source: bytes) -> list[Import]:
    """Return every import of a file, at any depth, and possibly text in a docstring that looks like one.

    Parsing every file would take most of the time of a plan. Imports are therefore matched by a pattern, and the file
    is parsed only where the pattern may miss one: where a line ends with a backslash, or where some word `import` is
    not part of a statement on a line of its own, as after a `;`.
    """
    matched = [_match_import(base, names) for base, names in _STATEMENT.findall(source)]
    statements = [statement for statement in matched if statement is not None]
    has_continuation = b"\\\n" in source or b"\\\r" in source
    is_complete = not has_continuation and len(statements) == len(_WORD.findall(source))
    return statements if is_complete else _parsed_imports(source)


def _match_import(base: bytes, names: bytes) -> Import | None:
    """Return a matched statement, or None where the text is not an import, as in a docstring."""
    matches = [_NAME.fullmatch(name) for name in _COMMENT.sub(b"", names).strip(b" \t()").split(b",")]
    if not all(matches):
        return None
    return Import(base.decode(), tuple(match[1].decode() for match in matches if match is not None and match[1]))


def _parsed_imports(source: bytes) -> list[Import]:
    statements: list[Import] = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import | ast.ImportFrom):
            base = "." * node.level + (node.module or "") if isinstance(node, ast.ImportFrom) else ""
            statements.append(Import(base, tuple(alias.name for alias in node.names)))
    return statements


def _module_files(module: str, root: Path, package: str) -> Iterator[Path]:
    path = root.joinpath(*module.split("."))
    if path.with_suffix(".py").is_file():
        yield path.with_suffix(".py")
    elif (path / "__init__.py").is_file() and module != package:
        # The package's own __init__ lists all of its variants: a new one must not make the others stale.
        yield path / "__init__.py"
