"""Documents from the rows of a table or a data set: a text, an optional second text, and a class or a score."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, final

from paribus import Document, Problem, Range, SpecError
from paribus_text.text_files import FileSet


@final
@dataclass(frozen=True)
class Columns:
    """Roles of the fields of a row."""

    text: Annotated[str, "field of the text"] = "text"
    second: Annotated[str | None, "field of the second text of a pair"] = None
    label: Annotated[str | None, "field of the class"] = None
    score: Annotated[str | None, "field of the score to predict"] = None
    classes: Annotated[int | None, "number of classes; null: that of `names`, or else 2", Range(2, 65536)] = None
    names: Annotated[tuple[str, ...], "names of the classes in order, if labels are words"] = ()

    @property
    def count(self) -> int:
        """The number of classes."""
        return self.classes or len(self.names) or 2

    @property
    def fields(self) -> list[str]:
        return [field for field in (self.text, self.second, self.label, self.score) if field is not None]

    def check(self, path: str) -> None:
        """Raise a SpecError if the options, which are at `path` of a spec, contradict each other."""
        if self.label is not None and self.score is not None:
            message = "expected a label or a score, got both"
            raise SpecError(
                Problem(code="too-many", path=f"{path}.score", message=message, valid="null, or `label` null")
            )
        if self.names and len(self.names) != self.count:
            message = f"got {len(self.names)} names for {self.classes} classes ({path}.classes)"
            valid = f"{self.classes} names, or {path}.classes null"
            raise SpecError(Problem(code="out-of-range", path=f"{path}.names", message=message, valid=valid))

    def documents(self, files: FileSet, location: str, values: Mapping[str, Any]) -> Iterator[Document]:
        """Yield the document of a row, if it has one; its problems are added to `files`."""
        labels = self._labels(files, location, values)
        texts = [self._text(files, location, values, field) for field in (self.text, self.second) if field is not None]
        if labels is None or None in texts:
            return
        sides = [files.to_sentences(text) for text in texts if text is not None]
        if all(sides):
            target = sides[1] if len(sides) > 1 else ()
            yield Document(location, sides[0], target, labels=labels)

    def _text(self, files: FileSet, location: str, values: Mapping[str, Any], field: str) -> str | None:
        value = values[field]
        if isinstance(value, str):
            return None if files.contains_nul(location, value) else value
        if value is None:
            files.dropped["rows without a text"] += 1
        else:
            files.add_problem("no-text", location, f"the field {field!r} is {type(value).__name__}", "text")
        return None

    def _labels(self, files: FileSet, location: str, values: Mapping[str, Any]) -> tuple[float, ...] | None:
        """Return the label or score of a row; None if it is missing or invalid."""
        field = self.label or self.score
        if field is None:
            return ()
        value = values[field]
        if value is None or (isinstance(value, str) and not value.strip()):
            files.dropped["rows without a label"] += 1
            return None
        number = self._class(value) if self.label else _number(value)
        if number is not None:
            return (number,)
        if self.score:
            files.add_problem("not-a-number", location, f"the score is {value!r}", "a finite number")
        else:
            valid = f"an integer from 0 to {self.count - 1} (`classes`), or names in `names`"
            if self.names:
                valid = f"{', '.join(self.names)}, or an integer from 0 to {self.count - 1}"
            message = f"unknown label {value!r}; the corpus has {self.count} classes"
            files.add_problem("missing-label", location, message, valid)
        return None

    def _class(self, value: Any) -> float | None:
        if self.names and value in self.names:
            return self.names.index(value)
        number = _number(value)
        return number if number in range(self.count) else None


def _number(value: Any) -> float | None:
    if not isinstance(value, str | int | float) or (isinstance(value, str) and "_" in value):
        return None
    try:
        number = float(value)
    except (ValueError, OverflowError):
        return None
    return number if math.isfinite(number) else None
