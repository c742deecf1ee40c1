"""What a spec may be at all, before anybody looks at what it says: small, flat, plain text without tricks."""

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
    """The text of a file, or what about its bytes is wrong, with line and column."""
    if len(data) > BYTES:
        raise _refused("too-large", name, f"this is too large: more than {BYTES:,} bytes", "less")
    if data.startswith(b"\xef\xbb\xbf"):
        raise _refused("not-text", f"{name}:1:1", "this begins with a byte-order mark", "UTF-8 without one")
    try:
        decoded = data.decode()
    except UnicodeDecodeError as error:
        where = _place(name, data[: error.start].decode(errors="replace"))
        what = f"this is not UTF-8: byte {data[error.start]:#04x}"
        raise _refused("not-text", where, what, "UTF-8") from None
    control = _CONTROL.search(decoded)
    if control is not None:
        what = f"this holds the control character \\u{ord(control[0]):04x}"
        raise _refused("not-text", _place(name, decoded[: control.start()]), what, "text")
    return decoded


def limit_events(events: Iterator[Event], name: str) -> Iterator[Event]:
    """The same events, as long as there are not too many of them, nor too deep ones."""
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
            raise _refused(
                "too-large", event_location(name, event), "this is too large: too many values", f"at most {NODES:,}"
            )
        yield event


def plain_tree(value: Any, name: str = "spec") -> Tree:
    """What was given in Python as plain values: dicts, lists, text, numbers, true, false and null; a copy."""
    tree = Tree()
    left = [NODES]

    def copied(value: Any, keys: Keys) -> Any:
        left[0] -= 1
        if left[0] < 0:
            raise _refused("too-large", name, "this is too large: too many values", f"at most {NODES:,}")
        if len(keys) > DEPTH:
            raise _refused("too-deep", name, "this is nested too deep, or within itself", f"at most {DEPTH} levels")
        if value is None or isinstance(value, (str, bool, int, float)):
            return value
        if isinstance(value, (list, tuple)):
            return [copied(item, (*keys, index)) for index, item in enumerate(value)]
        if isinstance(value, Mapping):
            return {_key(key, keys): copied(item, (*keys, key)) for key, item in value.items()}
        return _wrong(f"a spec holds no {type(value).__name__}", keys)

    def _key(key: Any, keys: Keys) -> str:
        if not isinstance(key, str):
            _wrong(f"a key is text, but this is the {type(key).__name__} {key!r}", keys)
        return str(key)

    def _wrong(what: str, keys: Keys) -> Any:
        valid = "mappings, lists, text, numbers, true, false, null"
        tree.problems.append(Problem(code="not-plain", path=join_keys(keys), location=name, message=what, valid=valid))
        return UNREAD

    tree.data = copied(value, ())
    return tree


def event_location(name: str, event: Event, *, column: bool = True) -> str:
    """`file.yaml:12:3`: where an event of the parser is."""
    mark = event.start_mark
    if mark is None:
        return name
    return f"{name}:{mark.line + 1}:{mark.column + 1}" if column else f"{name}:{mark.line + 1}"


def _place(name: str, before: str) -> str:
    line = before.count("\n") + 1
    return f"{name}:{line}:{len(before) - before.rfind(chr(10))}"


def _refused(code: str, where: str, what: str, valid: str) -> SpecError:
    return SpecError(Problem(code=code, location=where, message=what, valid=valid))
