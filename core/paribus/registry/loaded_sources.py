"""Sources of the modules of this process, as they were when they were imported: a file may be edited while it runs."""

from __future__ import annotations

import sys
import types
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path

from paribus.registry.function_code import digest_code
from paribus.storage.packages import find_package


def loaded_sources(known: Mapping[Path, bytes]) -> dict[Path, bytes]:
    """Return the sources of all imported modules but those of libraries.

    They are as known from earlier, unless a module was imported again since.
    """
    sources = dict(known)
    for name, module in [*sys.modules.items()]:
        file = getattr(module, "__file__", None)
        if not isinstance(file, str) or not file.endswith(".py"):
            continue
        package = find_package(name.partition(".")[0])
        if package.ignored or package.version:
            continue
        path = Path(file)
        with suppress(OSError):
            source = path.read_bytes()
            before = known.get(path)
            if before is None or (before != source and _is_from(module, source, before)):
                sources[path] = sources[path.resolve()] = source
    return sources


def _is_from(module: types.ModuleType, source: bytes, other: bytes) -> bool:
    """Return whether functions of a module have the code of one source and not that of the other."""
    try:
        codes, others = (_codes(compile(text, "", "exec")) for text in (source, other))
    except (SyntaxError, ValueError):
        return False
    return not codes.isdisjoint({*map(digest_code, _functions(vars(module), module.__name__))} - others)


def _codes(code: types.CodeType) -> set[bytes]:
    nested = [item for item in code.co_consts if isinstance(item, types.CodeType)]
    return {digest_code(code)}.union(*map(_codes, nested))


def _functions(namespace: Mapping[str, object], module: str) -> Iterator[types.CodeType]:
    """Yield the code of the functions in a namespace and in its classes."""
    for value in [*namespace.values()]:
        function = getattr(value, "__func__", None) or getattr(value, "fget", None) or value
        if isinstance(function, types.FunctionType):
            yield function.__code__
        elif isinstance(value, type) and value.__module__ == module:
            yield from _functions(vars(value), module)
