"""Hashes of source code that ignore comments, docstrings, layout and messages; import closure of a source file.

A file is hashed by its syntax tree, so only edits that can change a number change the hash. Parsing is slow, so a cache
maps the content of a file to the hash of its tree; a file itself is read on every plan, whatever its size and time.
"""

from __future__ import annotations

import ast
import hashlib
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from functools import cached_property, lru_cache
from pathlib import Path
from types import MappingProxyType
from typing import Final, NamedTuple, final

from paribus.errors import StoreError
from paribus.storage.atomic import cache_folder, make_folder, read_json, write_json
from paribus.storage.packages import SITES, find_package, source_root

LENGTH: Final = 32  # hexadecimal digits of a hash in the cache: 128 bits
CAPACITY: Final = 1024  # files in the cache
REPORTING: Final = frozenset({"debug", "info", "on_message", "print", "warn", "warning"})  # calls that print their text
_SKIPPED: Final = frozenset({"ctx", "kind", "type_comment"})  # fields of a syntax node that do not compute


@final
class CodeHashes:
    """Hashes of source files, with a cache on disk; each file is read once in the life of this object."""

    def __init__(self, sources: Mapping[Path, bytes] = MappingProxyType({})) -> None:
        """`sources` are known already, as of modules that were imported before their files were edited."""
        self._sources = dict(sources)
        self._by_path: dict[Path, str] = {}
        self._imported: dict[tuple[Path, bool], tuple[Path | str, ...]] = {}
        self._is_changed = False

    def source(self, path: Path) -> bytes:
        """Return the content of a file."""
        if path not in self._sources:
            self._sources[path] = path.read_bytes()
        return self._sources[path]

    def hash(self, path: Path) -> str:
        """Return the hash of what a file computes."""
        if path not in self._by_path:
            self._by_path[path] = self._hash(self.source(path).replace(b"\r\n", b"\n"))
        return self._by_path[path]

    def imported(self, path: Path, *, external: bool) -> tuple[Path | str, ...]:
        """Return the files that a file imports, and the versions of large packages, as `dependencies` needs them."""
        key = path, external
        if key not in self._imported:
            self._imported[key] = tuple(_imported(path, self.source(path), external=external))
        return self._imported[key]

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


class Dependencies(NamedTuple):
    """Code that a source file depends on."""

    files: frozenset[Path]
    versions: frozenset[str]  # of large packages: "scipy 1.13"


def closure(file: Path) -> frozenset[Path]:
    """Return `file` and all files that it imports, directly or not."""
    return dependencies([file], CodeHashes()).files


def dependencies(files: Iterable[Path], hashes: CodeHashes, *, external: bool = True) -> Dependencies:
    """Return the files and all code that they import, directly or not.

    This is code of their own top-level packages, except the `__init__` of these, which imports all variants; for a file
    outside of a package, other files of its folder; and with `external`, other packages. The standard library, paribus
    and what paribus needs do not count, and a large installed package counts by its version.
    """
    visited: set[Path] = set()
    versions: set[str] = set()
    queue: list[Path | str] = [file.resolve() for file in files]
    while queue:
        item = queue.pop()
        if isinstance(item, str):
            versions.add(item)
        elif item not in visited:
            visited.add(item)
            queue.extend(hashes.imported(item, external=external))
    return Dependencies(frozenset(visited), frozenset(versions))


def _imported(path: Path, source: bytes, *, external: bool) -> Iterator[Path | str]:
    if path.suffix != ".py":
        return  # a compiled module
    root = source_root(path.parent)
    package = path.relative_to(root).parts[:-1]
    if package and not external and package[0].encode() not in source and b"from ." not in source:
        return  # no import from the file's own package
    for base, names in imports(source):
        for module in _modules(base, names, package):
            top = module.partition(".")[0]
            if package and top == package[0]:
                yield from _module_files(module, root, package[0])
            elif not package and not external:
                yield from _module_files(module, root, "")
            elif external:
                has_siblings = not package and root.name not in SITES and not find_package(top).ignored
                siblings = tuple(_module_files(module, root, "")) if has_siblings else ()
                yield from siblings or _external_code(module)


def _external_code(module: str) -> Iterator[Path | str]:
    """Yield the files that the import of a module of another package runs, or the version of a large package."""
    top, *names = module.split(".")
    package = find_package(top)
    if package.version:
        yield package.version
    elif package.file:
        yield Path(package.file)
    for folder in () if package.version else package.folders:
        path = Path(folder)
        yield from _package_code(path)
        for name in names:
            path /= name
            if path.with_suffix(".py").is_file():
                yield path.with_suffix(".py")
            if not path.is_dir():
                yield from sorted(path.parent.glob(f"{name}.*.so"))
                break
            yield from _package_code(path)


def _package_code(folder: Path) -> Iterator[Path]:
    """Yield the `__init__` of a package, except that of a plugin, which imports all of its variants."""
    path = folder / "__init__.py"
    if path.is_file() and b"hookimpl" not in path.read_bytes():
        yield path


def _modules(base: str, names: tuple[str, ...], package: tuple[str, ...]) -> Iterator[str]:
    """Yield the modules that an import may load: the base, and each name that may be a module in it."""
    module = base.lstrip(".")
    if level := len(base) - len(module):
        module = ".".join(filter(None, [*package[: len(package) - level + 1], module]))
    if base:
        yield module
    yield from (f"{module}.{name}" if base else name for name in names)


@lru_cache(maxsize=2048)
def imports(source: bytes) -> tuple[Import, ...]:
    """Return every import of a file, at any depth, and possibly text in a docstring that looks like one.

    Parsing every file would take most of the time of a plan. Imports are therefore matched by a pattern, and the file
    is parsed only where the pattern may miss one: where a line ends with a backslash, or where some word `import` is
    not part of a statement on a line of its own, as after a `;`.
    """
    matched = [_match_import(base, names) for base, names in _STATEMENT.findall(source)]
    statements = [statement for statement in matched if statement is not None]
    has_continuation = b"\\\n" in source or b"\\\r" in source
    is_complete = not has_continuation and len(statements) == len(_WORD.findall(source))
    return tuple(statements if is_complete else _parsed_imports(source))


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
