"""YAML to plain values with their lines. Ambiguous scalars are errors: 010 is not 8, `no` is not false."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, final

from paribus.errors import Problem, SpecError
from paribus.specs.tree import DEPTH, NODES, UNREAD, Keys, Tree, input_error, join_keys, value_text

if TYPE_CHECKING:
    from yaml.events import Event, MappingStartEvent, NodeEvent, ScalarEvent


_NULL: Final = frozenset({"", "~", "null", "Null", "NULL"})
_BOOLEAN: Final = {
    text: value for word, value in (("true", True), ("false", False)) for text in (word, word.title(), word.upper())
}
_NORWAY: Final = {
    text: value
    for words, value in ((("yes", "on"), True), (("no", "off"), False))
    for word in words
    for text in (word, word.title(), word.upper())
}
_WHOLE: Final = re.compile(r"[-+]?(0|[1-9][0-9]*)")
_NUMBER: Final = re.compile(r"[-+]?(([0-9]+\.[0-9]*|\.[0-9]+)([eE][-+]?[0-9]+)?|[0-9]+[eE][-+]?[0-9]+)")
_INFINITE: Final = re.compile(r"([-+]?)\.(inf|Inf|INF)")
_NAN: Final = frozenset({".nan", ".NaN", ".NAN"})
_SEXAGESIMAL: Final = re.compile(r"[-+]?[0-9][0-9_]*(:[0-5]?[0-9])+(\.[0-9_]*)?")
_GROUPED: Final = re.compile(r"[-+]?([0-9][0-9_]*(\.[0-9_]*)?|\.[0-9][0-9_]*)([eE][-+]?[0-9]+)?")
_BASES: Final = {"0x": 16, "0b": 2, "0o": 8}
_DIGITS: Final = 20  # more than any size, step or seed has


@final
class MisreadError(ValueError):
    """Scalar that YAML would read as another value than it looks like."""


def parse_scalar(text: str) -> Any:  # noqa: PLR0911  # one return for each type
    """Parse a plain scalar: null, true, false, a decimal number, or text."""
    if text in _NULL:
        return None
    if text in _BOOLEAN:
        return _BOOLEAN[text]
    if text in _NORWAY:
        boolean = "true" if _NORWAY[text] else "false"
        raise MisreadError(
            f"YAML read `{text}` as a boolean ({boolean}); quote it if text is meant, else write {boolean}"
        )
    if _WHOLE.fullmatch(text):
        if len(text) > _DIGITS:
            raise MisreadError(f"a number of {len(text)} digits is too large")
        return int(text)
    if _NUMBER.fullmatch(text):
        return float(text)
    if match := _INFINITE.fullmatch(text):
        return float(f"{match[1]}inf")
    if text in _NAN:
        return float("nan")
    if (number := _other(text)) is not None:
        raise MisreadError(f"`{text}` would be read as {number}; write a plain decimal number, or quote it")
    return text


def _octal(text: str) -> int | None:
    digits = text.lstrip("+-")
    octal = len(digits) > 1 and digits[0] == "0" and re.fullmatch("[0-7_]+", digits)
    return int(digits.replace("_", ""), 8) if octal and digits.strip("_0") else None


def _other(text: str) -> float | int | None:
    """Return the value that YAML 1.1 or 1.2 reads from a number in another notation, or None."""
    sign = -1 if text.startswith("-") else 1
    digits = text.lstrip("+-").replace("_", "")
    if (octal := _octal(text)) is not None:
        return sign * octal
    base = _BASES.get(digits[:2].lower())
    if base is not None:
        try:
            return sign * int(digits[2:], base)
        except ValueError:
            return None
    if _SEXAGESIMAL.fullmatch(text):
        total = 0.0
        for part in digits.split(":"):
            total = total * 60 + float(part)
        return sign * (int(total) if total.is_integer() else total)
    if _GROUPED.fullmatch(text) and digits:
        return sign * (float(digits) if re.search("[.eE]", digits) else int(digits))
    return None


MAX_PROBLEMS: Final = 100  # maximum number of reported problems of one file
_INDENTED: Final = "with the same indentation as the lines beside it"
_HINTS: Final = {
    "cannot start any token": "indent with spaces, and quote text that begins with a special character",
    "mapping values are not allowed": f"a `key: value` on a line of its own, {_INDENTED}; quote text with a colon",
    "did not find expected key": f"a key {_INDENTED}",
    "did not find expected '-' indicator": f"an item of a list {_INDENTED}",
    "did not find expected <document start>": f"a key {_INDENTED}",
    "but found '<block": f"a key {_INDENTED}",  # message of the pure Python parser
    "expected alphabetic or numeric character": "quote text that begins with * or &",
    "could not find expected ':'": "`key: value`, with a space behind the colon",
}


def read_file(path: Path, name: str = "") -> Tree:
    """Read the mapping in a YAML file; `name` is the file's name in errors."""
    name = name or str(path)
    try:
        if path.is_dir():
            raise SpecError(
                Problem(code="cannot-read", location=name, message="expected a file, got a folder", valid="a YAML file")
            )
        with path.open("rb") as file:
            data = file.read(BYTES + 1)
    except (OSError, ValueError) as error:  # ValueError: a NUL in the path
        message = f"this file could not be read: {getattr(error, 'strerror', None) or error}"
        raise SpecError(Problem(code="cannot-read", location=name, message=message)) from None
    tree = read_yaml(decode_text(data, name), name)
    if not isinstance(tree.data, dict):
        kind = "empty" if tree.data is None else value_text(tree.data)
        raise SpecError(
            Problem(code="not-a-mapping", location=f"{name}:1:1", message=f"expected a mapping, got {kind}")
        )
    return tree


def read_yaml(text: str, name: str, *, lines: bool = True) -> Tree:
    """Read one YAML document. `name` is its name in errors; `lines`: whether locations include lines."""
    import yaml

    text = decode_text(text.encode(errors="surrogatepass"), name)
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    try:
        return _Reader(limit_events(yaml.parse(text, Loader=loader), name), name, lines).document()
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        location = f"{name}:{mark.line + 1}:{mark.column + 1}" if mark is not None and lines else name
        error_text = " ".join((error.problem or "broken").split())
        hint = next((hint for part, hint in _HINTS.items() if part in error_text), "")
        raise SpecError(
            Problem(code="syntax", location=location, message=f"invalid YAML: {error_text}", valid=hint)
        ) from None
    except yaml.YAMLError as error:
        error_text = " ".join(str(error).split())
        raise SpecError(Problem(code="syntax", location=name, message=f"invalid YAML: {error_text}")) from None


@final
class _Reader:
    """Build plain values from parser events."""

    def __init__(self, events: Iterator[Event], name: str, lines: bool) -> None:
        self.events = events
        self.name = name
        self.lines = lines
        self.tree = Tree()

    def document(self) -> Tree:
        from yaml.events import DocumentStartEvent, StreamEndEvent

        next(self.events)  # the stream starts
        if isinstance(next(self.events), StreamEndEvent):
            self.tree.data = None
            return self.tree
        self.tree.data = self.node(self.next(), ())
        next(self.events)  # the document ends
        event = next(self.events)
        if isinstance(event, DocumentStartEvent):
            self.wrong(
                "multiple-documents", event, (), "expected one document, got a second one", "one document a file"
            )
        return self.tree

    def next(self) -> NodeEvent:
        event: Any = next(self.events)
        return event  # type: ignore[no-any-return]  # within a document, every other event is of a node

    def node(self, event: NodeEvent, keys: Keys) -> Any:
        from yaml.events import AliasEvent, MappingStartEvent, ScalarEvent, SequenceStartEvent

        self.tree.locations[keys] = self.place(event)
        if isinstance(event, AliasEvent):
            valid = "${dims.width}, a reference by path; or quotes, if text is meant"
            return self.wrong("alias", event, keys, f"`*{event.anchor}` is an alias, which specs do not support", valid)
        if getattr(event, "anchor", None):
            valid = "${dims.width}, a reference by path; or quotes, if text is meant"
            self.wrong("alias", event, keys, f"`&{event.anchor}` is an anchor, which specs do not support", valid)
        value: Any = None
        if isinstance(event, ScalarEvent):
            value = self.scalar(event, keys)
        elif isinstance(event, SequenceStartEvent):
            value = self.sequence(keys)
        elif isinstance(event, MappingStartEvent):
            value = self.mapping(event, keys)
        tag = getattr(event, "tag", None)
        if tag is not None:
            message = f"the tag `{tag}` is not allowed: a spec is plain data and never names Python objects"
            return self.wrong("tag", event, keys, message, "the value without a tag")
        return value

    def scalar(self, event: ScalarEvent, keys: Keys) -> Any:
        if not event.implicit[0]:  # quoted, or with a tag
            return event.value
        try:
            return parse_scalar(event.value)
        except MisreadError as error:
            return self.wrong("misread", event, keys, str(error))

    def sequence(self, keys: Keys) -> list[Any]:
        from yaml.events import SequenceEndEvent

        items: list[Any] = []
        while not isinstance(event := self.next(), SequenceEndEvent):
            items.append(self.node(event, (*keys, len(items))))
        return items

    def mapping(self, start: MappingStartEvent, keys: Keys) -> dict[str, Any]:
        from yaml.events import MappingEndEvent, ScalarEvent

        values: dict[str, Any] = {}
        while not isinstance(event := self.next(), MappingEndEvent):
            if not isinstance(event, ScalarEvent):
                self.wrong("missing-key", event, keys, "expected text as a key")
                self.node(event, (*keys, "?"))
                self.node(self.next(), (*keys, "?"))
                continue
            key = event.value  # verbatim: `on:` is the key "on", and `1:` the key "1"
            value = self.node(self.next(), (*keys, key))
            if key in values:
                message = f"the key `{key}` is repeated"
                self.wrong("duplicate-key", event, (*keys, key), message)
            else:
                values[key] = value
        return values

    def place(self, event: Event) -> str:
        return event_location(self.name, event, column=False) if self.lines else self.name

    def wrong(self, code: str, event: Event, keys: Keys, message: str, valid: str = "") -> Any:
        location = event_location(self.name, event) if self.lines else self.name
        if len(self.tree.problems) < MAX_PROBLEMS:
            self.tree.problems.append(
                Problem(code=code, path=join_keys(keys), location=location, message=message, valid=valid)
            )
        return UNREAD


BYTES: Final = 1 << 20
_CONTROL: Final = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x84\x86-\x9f]")


def decode_text(data: bytes, name: str) -> str:
    """Decode the text of a file, or raise an error with line and column."""
    if len(data) > BYTES:
        raise input_error("too-large", name, f"the file is too large: more than {BYTES:,} bytes", "less")
    if data.startswith(b"\xef\xbb\xbf"):
        raise input_error("not-text", f"{name}:1:1", "the file begins with a byte-order mark", "UTF-8 without one")
    try:
        decoded = data.decode()
    except UnicodeDecodeError as error:
        location = _place(name, data[: error.start].decode(errors="replace"))
        message = f"expected UTF-8, got the byte {data[error.start]:#04x}"
        raise input_error("not-text", location, message, "UTF-8") from None
    control = _CONTROL.search(decoded)
    if control is not None:
        message = f"the file contains the control character \\u{ord(control[0]):04x}"
        raise input_error("not-text", _place(name, decoded[: control.start()]), message, "text")
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
            raise input_error(
                "too-deep", event_location(name, event), "this is nested too deep", f"at most {DEPTH} levels"
            )
        if nodes > NODES:
            raise input_error("too-large", event_location(name, event), "too many values", f"at most {NODES:,}")
        yield event


def event_location(name: str, event: Event, *, column: bool = True) -> str:
    """Return the location of a parser event: `file.yaml:12:3`."""
    mark = event.start_mark
    if mark is None:
        return name
    return f"{name}:{mark.line + 1}:{mark.column + 1}" if column else f"{name}:{mark.line + 1}"


def _place(name: str, preceding: str) -> str:
    line = preceding.count("\n") + 1
    return f"{name}:{line}:{len(preceding) - preceding.rfind(chr(10))}"
