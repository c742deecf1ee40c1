"""A row of a table, or of somebody's data set, as a document: its text, perhaps another, and what is to be told."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple, final

from paribus import Document, Problem, SpecError
from paribus_text.files import Found


@final
class Columns(NamedTuple):
    """Which field of a row is what."""

    text: str
    second: str | None = None
    label: str | None = None
    score: str | None = None
    classes: int = 2
    names: Sequence[str] = ()  # of the classes, where labels are words

    @property
    def fields(self) -> list[str]:
        return [field for field in (self.text, self.second, self.label, self.score) if field is not None]

    def check(self) -> None:
        if self.label is not None and self.score is not None:
            what = "a row has a label or a score to be told, and not both"
            raise SpecError(Problem(code="too-many", path="corpus.score", message=what, valid="null, or `label` null"))
        if self.names and len(self.names) != self.classes:
            what = f"{len(self.names)} names are given, but `corpus.classes` is {self.classes}"
            valid = f"{self.classes} names, or corpus.classes={len(self.names)}"
            raise SpecError(Problem(code="out-of-range", path="corpus.names", message=what, valid=valid))

    def documents(self, found: Found, where: str, values: Mapping[str, Any]) -> Iterator[Document]:
        """The document of a row, or none; what is wrong with it goes to `found`, with its place."""
        labels = self._labels(found, where, values)
        texts = [self._text(found, where, values, field) for field in (self.text, self.second) if field is not None]
        if labels is None or None in texts:
            return
        parts = [found.parts(text) for text in texts if text is not None]
        if all(parts):
            target = parts[1] if len(parts) > 1 else ()
            yield Document(where, parts[0], target, labels=labels)

    def _text(self, found: Found, where: str, values: Mapping[str, Any], field: str) -> str | None:
        value = values[field]
        if isinstance(value, str):
            return value
        if value is None:
            found.dropped["rows without a text"] += 1
        else:
            found.wrong("no-text", where, f"the field {field!r} is {type(value).__name__}", "text")
        return None

    def _labels(self, found: Found, where: str, values: Mapping[str, Any]) -> tuple[float, ...] | None:
        """What is to be told of a row, in numbers; None, where it has nothing to tell or that is wrong."""
        field = self.label or self.score
        if field is None:
            return ()
        value = values[field]
        if value is None or (isinstance(value, str) and not value.strip()):
            found.dropped["rows without a label"] += 1
            return None
        number = self._class(value) if self.label else _number(value)
        if number is not None:
            return (number,)
        if self.score:
            found.wrong("no-number", where, f"the score {value!r} is no number", "a number that is finite")
        else:
            valid = f"a whole number from 0 to {self.classes - 1} (corpus.classes), or names in corpus.names"
            if self.names:
                valid = f"{', '.join(self.names)}, or a whole number from 0 to {self.classes - 1}"
            found.wrong("no-label", where, f"the label {value!r} is none of the {self.classes} classes", valid)
        return None

    def _class(self, value: Any) -> float | None:
        if self.names and value in self.names:
            return self.names.index(value)
        number = _number(value)
        return number if number in range(self.classes) else None


def _number(value: Any) -> float | None:
    if not isinstance(value, str | int | float) or (isinstance(value, str) and "_" in value):
        return None
    try:
        number = float(value)
    except (ValueError, OverflowError):
        return None
    return number if math.isfinite(number) else None
