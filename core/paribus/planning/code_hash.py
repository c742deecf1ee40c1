"""Hashes of source code that ignore comments, docstrings, layout and messages.

A file is hashed by its syntax tree, so only edits that can change a number change the hash. Parsing is slow, so a cache
maps the content of a file to the hash of its tree; a file itself is read on every plan, whatever its size and time.
"""

from __future__ import annotations

import ast
import hashlib
import sys
from collections.abc import Iterator
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import Final, final

from paribus.errors import StoreError
from paribus.storage.atomic import cache_folder, make_folder, read_json, write_json

LENGTH: Final = 32  # hexadecimal digits of a hash in the cache: 128 bits
CAPACITY: Final = 1024  # files in the cache
REPORTING: Final = frozenset({"debug", "info", "on_message", "print", "warn", "warning"})  # calls that print their text
_SKIPPED: Final = frozenset({"ctx", "kind", "type_comment"})  # fields of a syntax node that do not compute


@final
class CodeHashes:
    """Hashes of source files, with a cache on disk; each file is read once in the life of this object."""

    def __init__(self) -> None:
        self._by_path: dict[Path, str] = {}
        self._is_changed = False

    def hash(self, path: Path) -> str:
        """Return the hash of what a file computes."""
        if path not in self._by_path:
            source = path.read_bytes().replace(b"\r\n", b"\n")
            self._by_path[path] = self._hash(source)
        return self._by_path[path]

    def save(self) -> None:
        """Write new hashes to the cache; without a writable cache folder, they are computed again next time."""
        if self._is_changed:
            newest = dict(list(self._by_content.items())[-CAPACITY:])
            with suppress(StoreError):
                make_folder(self._file.parent)
                write_json(self._file, newest)
            self._is_changed = False

    def _hash(self, source: bytes) -> str:
        content = _digest(source)
        if content not in self._by_content:
            self._by_content[content] = tree_hash(source)
            self._is_changed = True
        return self._by_content[content]

    @cached_property
    def _by_content(self) -> dict[str, str]:
        try:
            return dict(read_json(self._file))
        except StoreError:
            return {}

    @cached_property
    def _file(self) -> Path:
        """The cache of this Python and of this version of the rules below."""
        python = ".".join(map(str, sys.version_info[:2]))
        return cache_folder() / "code" / f"{python}-{_digest(Path(__file__).read_bytes())}.json"


def code_fingerprint(*files: str | Path) -> list[str]:
    """Return a hash of what each file computes, for the fingerprint of a corpus that its own code draws."""
    hashes = CodeHashes()
    values = [hashes.hash(Path(file)) for file in files]
    hashes.save()
    return values


def tree_hash(source: bytes) -> str:
    """Return the hash of what a source file computes; that of its bytes where it is not valid Python."""
    try:
        return _digest("\n".join(_tree(ast.parse(source))).encode())
    except (SyntaxError, ValueError, RecursionError):
        return _digest(source)


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:LENGTH]


def _tree(node: object, *, is_message: bool = False) -> Iterator[str]:
    """Yield the syntax tree as text, without empty fields: Python versions differ in those."""
    if isinstance(node, list):
        yield "["
        for item in node:
            if not (isinstance(item, ast.Expr) and _is_string(item.value)):  # a docstring
                yield from _tree(item, is_message=is_message)
        yield "]"
    elif not isinstance(node, ast.AST):
        yield repr(node)
    elif is_message and (_is_string(node) or isinstance(node, ast.JoinedStr)):
        yield "message"
    else:
        yield type(node).__name__
        is_message = is_message or _has_message(node)
        for name, value in _fields(node):
            if value is not None and value != []:
                yield name
                yield from _tree(value, is_message=is_message)
        yield "."


def _is_string(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str)


def _has_message(node: ast.AST) -> bool:
    """An error, a warning, or a value of the name `message`: strings in it are only printed."""
    match node:
        case ast.Raise() | ast.Assign(targets=[ast.Name(id="message")]):
            return True
        case ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name)):
            return name in REPORTING or name.endswith("Error")
    return False


def _fields(node: ast.AST) -> Iterator[tuple[str, object]]:
    """Yield the fields of a node that compute: not those of a `Problem`, nor the text of an option or an `assert`."""
    match node:
        case ast.Call(func=ast.Name(id="Problem")):
            yield "func", node.func
        case ast.Assert():
            yield "test", node.test
        case ast.Subscript(value=ast.Name(id="Annotated"), slice=ast.Tuple(elts=items)):
            yield "annotation", [item for item in items if not _is_string(item)]
        case _:
            yield from ((name, getattr(node, name, None)) for name in node._fields if name not in _SKIPPED)
