"""Model and input texts of the inference commands."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from paribus.cli.console import Session
from paribus.errors import DataError, Problem, SpecError
from paribus.storage.saved_model import find_model, read_model

if TYPE_CHECKING:
    from paribus.train.lightning_module import Model


def load_named_model(session: Session, name: str, store: Path) -> Model:
    """Load the model of a folder, or of the trial in `store` whose identity has this prefix."""
    saved_model = read_model(find_model(name, store))
    from paribus.train.assemble import load_model

    return load_model(saved_model, session.registry())


def read_texts(words: Sequence[str], file: Path | None, kind: str) -> list[str]:
    """Return texts from the arguments, a file or stdin (one a line); blank lines are skipped."""
    if words and file is not None:
        message = f"expected --file or texts, got --file and {len(words)} texts"
        raise SpecError(Problem(code="usage", path=kind, message=message, valid="one of the two"))
    if words:
        return list(words)
    if file is None and (sys.stdin is None or sys.stdin.isatty()):
        valid = f"{kind} as arguments, --file FILE, or lines on stdin"
        raise SpecError(Problem(code="usage", path=kind, message=f"missing {kind}", valid=valid))
    try:
        data = file.read_bytes() if file is not None else sys.stdin.buffer.read()
    except OSError as error:
        message = f"cannot read this file: {error.strerror or error}"
        raise DataError(Problem(code="cannot-read", location=str(file), message=message)) from error
    return _lines(data, str(file) if file is not None else "stdin", kind)


def _lines(data: bytes, location: str, kind: str) -> list[str]:
    try:
        lines = [line for line in data.decode().splitlines() if line.strip()]
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        message = f"byte {data[error.start]:#04x} at offset {error.start:,} is not UTF-8"
        problem = Problem(code="not-utf-8", location=f"{location}:{line}", message=message, valid="a file in UTF-8")
        raise DataError(problem) from error
    if not lines:
        raise DataError(
            Problem(
                code="empty", path=kind, location=location, message="the input is empty", valid="a text in each line"
            )
        )
    return lines
