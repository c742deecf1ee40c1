"""What verbs share that ask a trained model: which one, and what they read."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from paribus.cli.console import Session
from paribus.errors import DataError, Problem, SpecError
from paribus.storage.saved_model import find_model, read_model

if TYPE_CHECKING:
    from paribus.train.model import Model


def asked(session: Session, name: str, store: Path) -> Model:
    """The model of a folder, or of the trial of `store` whose identity begins so."""
    found = read_model(find_model(name, store))
    from paribus.train.assemble import load_model

    return load_model(found, session.registry())


def given(words: Sequence[str], file: Path | None, of: str) -> list[str]:
    """Texts as arguments, or those that stand in a file or on stdin, a line each; a blank one is none."""
    if words and file is not None:
        what = f"there are a --file and {len(words)} texts beside it"
        raise SpecError(Problem(code="usage", path=of, message=what, valid="one of the two"))
    if words:
        return list(words)
    if file is None and (sys.stdin is None or sys.stdin.isatty()):
        valid = f"{of} as arguments, --file FILE, or lines on stdin"
        raise SpecError(Problem(code="usage", path=of, message="there is none", valid=valid))
    try:
        data = file.read_bytes() if file is not None else sys.stdin.buffer.read()
    except OSError as error:
        what = f"this file could not be read: {error.strerror or error}"
        raise DataError(Problem(code="cannot-read", location=str(file), message=what)) from error
    return _lines(data, str(file) if file is not None else "stdin", of)


def _lines(data: bytes, where: str, of: str) -> list[str]:
    try:
        lines = [line for line in data.decode().splitlines() if line.strip()]
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        what = f"byte {data[error.start]:#04x} at offset {error.start:,} is not UTF-8"
        problem = Problem(code="not-utf-8", location=f"{where}:{line}", message=what, valid="a file in UTF-8")
        raise DataError(problem) from error
    if not lines:
        raise DataError(
            Problem(code="empty", path=of, location=where, message="it is empty", valid="a text in each line")
        )
    return lines
