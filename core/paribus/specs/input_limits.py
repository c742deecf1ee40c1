"""Limits of any spec: size, depth, encoding and plain types."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

from paribus.errors import Problem, SpecError
from paribus.specs.tree import UNREAD, Keys, Tree, join_keys

if TYPE_CHECKING:
    from yaml.events import Event

BYTES: Final = 1 << 20
DEPTH: Final = 64
NODES: Final = 100_000
_CONTROL: Final = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x84\x86-\x9f]")


def decode_text(data: bytes, name: str) -> str:
    """Decode the text of a file, or raise an error with line and column."""
    if len(data) > BYTES:
        raise _refused("too-large", name, f"the file is too large: more than {BYTES:,} bytes", "less")
    if data.startswith(b"\xef\xbb\xbf"):
        raise _refused("not-text", f"{name}:1:1", "the file begins with a byte-order mark", "UTF-8 without one")
    try:
        decoded = data.decode()
    except UnicodeDecodeError as error:
        location = _place(name, data[: error.start].decode(errors="replace"))
        message = f"expected UTF-8, got the byte {data[error.start]:#04x}"
        raise _refused("not-text", location, message, "UTF-8") from None
    control = _CONTROL.search(decoded)
    if control is not None:
        message = f"the file contains the control character \\u{ord(control[0]):04x}"
        raise _refused("not-text", _place(name, decoded[: control.start()]), message, "text")
    return decoded


def limit_events(events: Iterator[Event], name: str) -> Iterator[Event]:
    """Yield the same events, and raise an error if there are too many or if they are nested too deep."""
    from yaml.events import CollectionEndEvent, CollectionStartEvent, NodeEvent

    depth = nodes = 0
    for event in events:
        if isinstance(event, NodeEvent):
            nodes += 1
        if isinstance(event, CollectionStartEvent):
            depth += 1
        elif isinstance(event, CollectionEndEvent):
            depth -= 1
        if depth > DEPTH:
            raise _refused(
                "too-deep", event_location(name, event), "this is nested too deep", f"at most {DEPTH} levels"
            )
        if nodes > NODES:
            raise _refused("too-large", event_location(name, event), "too many values", f"at most {NODES:,}")
        yield event


def plain_tree(value: Any, name: str = "spec") -> Tree:
    """Return a copy of a Python value as plain values: dicts, lists, text, numbers, true, false and null."""
    tree = Tree()
    remaining = [NODES]

    def copied(value: Any, keys: Keys) -> Any:
        remaining[0] -= 1
        if remaining[0] < 0:
            raise _refused("too-large", name, "too many values", f"at most {NODES:,}")
        if len(keys) > DEPTH:
            raise _refused("too-deep", name, "this is nested too deep, or contains itself", f"at most {DEPTH} levels")
        if value is None or isinstance(value, (str, bool, int, float)):
            return value
        if isinstance(value, (list, tuple)):
            return [copied(item, (*keys, index)) for index, item in enumerate(value)]
        if isinstance(value, Mapping):
            return {_key(key, keys): copied(item, (*keys, key)) for key, item in value.items()}
        return _wrong(f"expected a plain value, got a {type(value).__name__}", keys)

    def _key(key: Any, keys: Keys) -> str:
        if not isinstance(key, str):
            _wrong(f"expected text as a key, got the {type(key).__name__} {key!r}", keys)
        return str(key)

    def _wrong(message: str, keys: Keys) -> Any:
        valid = "mappings, lists, text, numbers, true, false, null"
        tree.problems.append(
            Problem(code="not-plain", path=join_keys(keys), location=name, message=message, valid=valid)
        )
        return UNREAD

    tree.data = copied(value, ())
    return tree


def event_location(name: str, event: Event, *, column: bool = True) -> str:
    """Return the location of a parser event: `file.yaml:12:3`."""
    mark = event.start_mark
    if mark is None:
        return name
    return f"{name}:{mark.line + 1}:{mark.column + 1}" if column else f"{name}:{mark.line + 1}"


def _place(name: str, preceding: str) -> str:
    line = preceding.count("\n") + 1
    return f"{name}:{line}:{len(preceding) - preceding.rfind(chr(10))}"


def _refused(code: str, location: str, message: str, valid: str) -> SpecError:
    return SpecError(Problem(code=code, location=location, message=message, valid=valid))
