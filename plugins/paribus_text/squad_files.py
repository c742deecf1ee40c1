"""Questions of JSON files in the format of SQuAD 1.1 and 2.0."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

from paribus_text.table_rows import BOM, AddProblem

FORMAT: Final = (
    '{"data": [{"paragraphs": [{"context": "…", "qas": [{"question": "…", "answers": '
    '[{"text": "…", "answer_start": 0}], "is_impossible": false}]}]}]}'
)


class Question(NamedTuple):
    """Question with the answers that its context has, each with the number of its first character."""

    location: str
    text: str
    context: str
    answers: list[tuple[str, int]]
    is_impossible: bool


class _FormatError(Exception):
    """Value that is missing or of another type, at a place of a file."""


def questions(path: Path, add_problem: AddProblem) -> Iterator[Question]:
    """Yield the questions of a file, up to the first value that does not have the format."""
    try:
        data = json.loads(path.read_bytes().removeprefix(BOM))
    except OSError as error:
        return add_problem("cannot-read", path, f"cannot read the file: {error.strerror}", "a readable file")
    except (ValueError, RecursionError) as error:
        return add_problem("broken-json", path, f"invalid JSON: {error}", FORMAT)
    try:
        for number, article in enumerate(_get(data, "data", list, "the file")):
            paragraphs = _get(article, "paragraphs", list, f"data.{number}")
            for index, paragraph in enumerate(paragraphs):
                yield from _of_paragraph(paragraph, path, f"data.{number}.paragraphs.{index}")
    except _FormatError as error:
        add_problem("missing-field", path, str(error), FORMAT)
    return None


def _of_paragraph(paragraph: Any, path: Path, place: str) -> Iterator[Question]:
    context = _get(paragraph, "context", str, place)
    for number, row in enumerate(_get(paragraph, "qas", list, place)):
        at = f"{place}.qas.{number}"
        text = _get(row, "question", str, at)
        answers = [
            (
                _get(answer, "text", str, f"{at}.answers.{index}"),
                _get(answer, "answer_start", int, f"{at}.answers.{index}"),
            )
            for index, answer in enumerate(_get(row, "answers", list, at))
        ]
        is_impossible = bool(row.get("is_impossible", False))
        yield Question(f"{path}, {at}", text, context, [] if is_impossible else answers, is_impossible)


def _get(value: Any, key: str, kind: type, place: str) -> Any:
    """Return the value of a key; raise a _FormatError if there is none of this type."""
    if not isinstance(value, dict) or not isinstance(value.get(key), kind):
        found = type(value.get(key)).__name__ if isinstance(value, dict) and key in value else "none"
        raise _FormatError(f"expected `{key}` ({kind.__name__}) in {place}, found {found}")
    return value[key]
