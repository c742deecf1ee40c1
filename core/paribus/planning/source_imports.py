"""Which files of its own package a file imports, and which these do: all that decides what a component does."""

from __future__ import annotations

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


class Said(NamedTuple):
    """One import: `from BASE import NAMES`, or without a base `import NAMES`; the dots of a relative one are in it."""

    base: str
    names: tuple[str, ...]


@lru_cache(maxsize=1024)
def closure(file: Path) -> frozenset[Path]:
    """`file` and, transitively, the files of its own top-level package that it imports."""
    root = _source_root(file)
    found: set[Path] = set()
    left = [file.resolve()]
    while left:
        path = left.pop()
        if path not in found:
            found.add(path)
            left.extend(_imported(path, root))
    return frozenset(found)


def _source_root(file: Path) -> Path:
    """The folder that holds the top-level package."""
    folder = file.resolve().parent
    while (folder / "__init__.py").exists():
        folder = folder.parent
    return folder


def _imported(path: Path, root: Path) -> Iterator[Path]:
    package = path.relative_to(root).parts[:-1]
    source = path.read_bytes()
    if not package or (package[0].encode() not in source and b"from ." not in source):
        return  # it imports nothing of its own package
    for base, names in imports(source):
        for name in _modules(base, names, package):
            if name.partition(".")[0] == package[0]:
                yield from _files_of(name, root, package[0])


def _modules(base: str, names: tuple[str, ...], package: tuple[str, ...]) -> Iterator[str]:
    """What an import may load: a module, and what may be a module in it."""
    module = base.lstrip(".")
    if level := len(base) - len(module):
        module = ".".join(filter(None, [*package[: len(package) - level + 1], module]))
    if base:
        yield module
    yield from (f"{module}.{name}" if base else name for name in names)


def imports(source: bytes) -> list[Said]:
    """Every import of a file, wherever in it, and perhaps what only reads like one.

    To parse all of every file would be most of a plan's time. So it is done only where a line goes on behind a
    backslash, or where some word `import`, be it in a comment, is not that of a statement on a line of its own: behind
    a `;` or an `if`, say.
    """
    said = [_said(base, names) for base, names in _STATEMENT.findall(source)]
    whole = [each for each in said if each is not None]
    plain = b"\\\n" not in source and b"\\\r" not in source and len(whole) == len(_WORD.findall(source))
    return whole if plain else _parsed(source)


def _said(base: bytes, names: bytes) -> Said | None:
    """A statement; None for what is no import, as a line of a docstring may begin like one."""
    listed = [_NAME.fullmatch(each) for each in _COMMENT.sub(b"", names).strip(b" \t()").split(b",")]
    if not all(listed):
        return None
    return Said(base.decode(), tuple(each[1].decode() for each in listed if each is not None and each[1]))


def _parsed(source: bytes) -> list[Said]:
    import ast

    found: list[Said] = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import | ast.ImportFrom):
            base = "." * node.level + (node.module or "") if isinstance(node, ast.ImportFrom) else ""
            found.append(Said(base, tuple(alias.name for alias in node.names)))
    return found


def _files_of(module: str, root: Path, package: str) -> Iterator[Path]:
    place = root.joinpath(*module.split("."))
    if place.with_suffix(".py").is_file():
        yield place.with_suffix(".py")
    elif (place / "__init__.py").is_file() and module != package:
        # A package's own __init__ lists all of its variants: adding one must not make the others stale.
        yield place / "__init__.py"
