"""Dotted paths into nested mappings and lists: `attention.0.kv_heads`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any


def get_path(value: Any, path: str, default: Any = None) -> Any:
    """Return the value at a dotted path, or `default`; a number in the path is an index of a list."""
    for key in path.split("."):
        if isinstance(value, Mapping) and key in value:
            value = value[key]
        elif isinstance(value, list | tuple) and key.isdecimal() and int(key) < len(value):
            value = value[int(key)]
        else:
            return default
    return value


def flatten(value: Any, path: str = "", *, has_lists: bool = True) -> Iterator[tuple[str, Any]]:
    """Yield the dotted path and value of every leaf; with `has_lists` false, a list is a leaf."""
    if isinstance(value, Mapping):
        pairs = list(value.items())
    elif isinstance(value, list | tuple) and has_lists:
        pairs = list(enumerate(value))
    else:
        yield path, value
        return
    for key, item in pairs:
        yield from flatten(item, f"{path}.{key}" if path else str(key), has_lists=has_lists)
