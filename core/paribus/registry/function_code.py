"""Reading of bytecode: the globals, imports and attributes that a function names, and a digest of the code itself."""

from __future__ import annotations

import ast
import dis
import hashlib
import inspect
import re
import types
from collections.abc import Mapping
from contextlib import suppress
from functools import lru_cache
from typing import Any, Final, NamedTuple, final

SIZE: Final = 16  # bytes of a digest
_LOADS: Final = frozenset({"LOAD_GLOBAL", "LOAD_NAME", "LOAD_FROM_DICT_OR_GLOBALS"})
_ATTRIBUTES: Final = frozenset({"LOAD_ATTR", "LOAD_METHOD"})
_READING_METHODS: Final = frozenset({"read_text", "read_bytes", "__subclasses__"})


def combine(tag: str, *parts: bytes) -> bytes:
    """Return the digest of a kind of value and its parts."""
    hashed = hashlib.blake2b(tag.encode(), digest_size=SIZE)
    for part in parts:
        hashed.update(len(part).to_bytes(8, "big"))
        hashed.update(part)
    return hashed.digest()


class Scan(NamedTuple):
    """Names that the bytecode of a function and of the functions in it uses."""

    chains: tuple[tuple[tuple[str, ...], int], ...]  # dotted names that begin with a global, and their lines
    stored: frozenset[str]  # globals that it assigns
    imports: tuple[tuple[str, tuple[str, ...], int], ...]  # modules, names that are imported from them, and lines
    attributes: frozenset[str]
    methods: tuple[tuple[str, int], ...]  # that read files or what the process has defined


@lru_cache(maxsize=16384)
def scan_code(code: types.CodeType) -> Scan:
    scanner = Scanner()
    codes = [code]
    while codes:
        current = codes.pop()
        codes.extend(item for item in current.co_consts if isinstance(item, types.CodeType))
        if current.co_names:
            scanner.add(current)
    return scanner.scan()


@final
class Scanner:
    """Reader of bytecode."""

    def __init__(self) -> None:
        self._chains: dict[tuple[str, ...], int] = {}
        self._stored: set[str] = set()
        self._imports: dict[str, tuple[list[str], int]] = {}
        self._attributes: set[str] = set()
        self._methods: dict[str, int] = {}
        self._chain: tuple[str, ...] = ()  # that the last instructions load

    def scan(self) -> Scan:
        imports = tuple((module, tuple(names), line) for module, (names, line) in self._imports.items())
        attributes, methods = frozenset(self._attributes), tuple(self._methods.items())
        return Scan(tuple(self._chains.items()), frozenset(self._stored), imports, attributes, methods)

    def add(self, code: types.CodeType) -> None:
        line, module, has_names = code.co_firstlineno, "", False
        level: Any = 0
        last: Any = None
        for instruction in dis.get_instructions(code):
            name, value = instruction.opname, instruction.argval
            positions = instruction.positions
            if name in _ATTRIBUTES:
                self._load_attribute(value, line)
                continue
            self._end_chain(line)
            if positions is not None and positions.lineno:
                line = positions.lineno
            if name in _LOADS:
                self._chain = (value,)
            elif name in ("STORE_GLOBAL", "DELETE_GLOBAL"):
                self._stored.add(value)
            elif name == "IMPORT_NAME":  # the constants before it are the level and the names
                module = "." * (level if isinstance(level, int) else 0) + value
                has_names = last is not None
                self._imports.setdefault(module, ([], line))
            elif name == "IMPORT_FROM" and has_names:  # without names, it is the `b` of `import a.b as c`
                self._imports[module][0].append(value)
            level, last = last, value
        self._end_chain(line)

    def _load_attribute(self, name: str, line: int) -> None:
        self._attributes.add(name)
        if name in _READING_METHODS:
            self._methods.setdefault(name, line)
        if self._chain:
            self._chain = (*self._chain, name)

    def _end_chain(self, line: int) -> None:
        if self._chain:
            self._chains.setdefault(self._chain, line)
            self._chain = ()


_GLOBAL: Final = re.compile(rb"^[ \t]+global[ \t]+([\w, \t]+)", re.MULTILINE)
_DEFINITION: Final = re.compile(rb"^[ \t]*(?:async[ \t]+)?def[ \t]+(\w+)", re.MULTILINE)


@lru_cache(maxsize=1024)
def changed_globals(source: bytes) -> frozenset[str]:
    """Return the globals that the functions of a file assign."""
    return frozenset(name.strip().decode() for names in _GLOBAL.findall(source) for name in names.split(b","))


@lru_cache(maxsize=1024)
def _definitions(source: bytes) -> Mapping[bytes, tuple[int, ...]]:
    """Return the lines of the functions of each name in a file."""
    lines: dict[bytes, list[int]] = {}
    for match in _DEFINITION.finditer(source):
        lines.setdefault(match[1], []).append(source.count(b"\n", 0, match.start(1)) + 1)
    return {name: tuple(numbers) for name, numbers in lines.items()}


@lru_cache(maxsize=256)
def _lambdas(source: bytes) -> tuple[tuple[int, int, int, int], ...]:
    """Return the positions of the lambda expressions of a file, in order."""
    with suppress(SyntaxError, ValueError, RecursionError):
        nodes = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Lambda)]
        return tuple(sorted((it.lineno, it.col_offset, it.end_lineno or 0, it.end_col_offset or 0) for it in nodes))
    return ()


def _lambda_position(source: bytes, code: types.CodeType) -> bytes:
    """Return the index of a lambda expression in a file; with its bytecode, where Python has not kept its column."""
    line, column = code.co_firstlineno, _first_column(code)
    candidates = [
        (start, end_line > line or start <= column <= end, index)
        for index, (start_line, start, end_line, end) in enumerate(_lambdas(source))
        if start_line == line
    ]
    if len(candidates) == 1:
        return str(candidates[0][2]).encode()
    index = max(((start, index) for start, is_around, index in candidates if is_around), default=(0, -1))[1]
    return str(index).encode() if index >= 0 else digest_code(code)


def position(code: types.CodeType, source: bytes) -> bytes:
    """Return which of the functions of one name in a file this is; comments do not change it."""
    if code.co_name == "<lambda>":
        return _lambda_position(source, code)
    names = _definitions(source).get(code.co_name.encode(), ())
    return str(sum(line < code.co_firstlineno for line in names)).encode() if len(names) > 1 else b""


def _first_column(code: types.CodeType) -> int:
    """Return the column of the first instruction of an expression."""
    positions = (it for it in code.co_positions() if it[0] == code.co_firstlineno and it[2])
    return next((column for _, _, column, _ in positions if column is not None), 0)


def digest_code(code: types.CodeType) -> bytes:
    """Return the digest of bytecode, without docstrings and line numbers."""
    constants = list(code.co_consts)
    is_function = bool(code.co_flags & inspect.CO_OPTIMIZED) and not code.co_name.startswith("<")
    if is_function and constants and isinstance(constants[0], str):  # of a function, the first one is its docstring
        constants[0] = None
    names = (code.co_name, code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars)
    numbers = (code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount, code.co_flags)
    return combine(
        "code",
        repr((names, numbers)).encode(),
        code.co_code,
        code.co_exceptiontable,
        *map(_digest_constant, constants),
    )


def _digest_constant(value: Any) -> bytes:
    if isinstance(value, types.CodeType):
        return digest_code(value)
    if isinstance(value, tuple):
        return combine("tuple", *map(_digest_constant, value))
    if isinstance(value, frozenset):
        return combine("set", *sorted(map(_digest_constant, value)))
    return combine(type(value).__name__, repr(value).encode())
