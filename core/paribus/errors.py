"""Errors shown to users: one line a problem, all problems at once, and an exit code.

Imports nothing heavy: every layer may raise these errors.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import ClassVar

EXIT_OK = 0
EXIT_FAILED = 1  # a trial failed or a gate tripped
EXIT_SPEC = 2
EXIT_PLUGIN = 3
EXIT_DATA = 4
EXIT_STORE = 5
EXIT_NOT_COMPARABLE = 6
EXIT_BUG = 70
EXIT_INTERRUPTED = 130
EXIT_TERMINATED = 143


@dataclass(frozen=True, kw_only=True)
class Problem:
    """One mistake: where it is, what is wrong, what is valid."""

    code: str  # short and stable, for tests and for searching: "unknown-key", "out-of-range"
    path: str = ""  # "attention.kv_heads"; empty for a problem of the whole file
    location: str = ""  # "study.yaml:12", "override 2"
    message: str  # 'unknown attention "mqaa"'
    suggestion: str = ""  # the closest valid name: "mqa"
    valid: str = ""  # the valid values
    hint: str = ""  # what to do about it

    def __str__(self) -> str:
        return f"error[{self.code}]{self.place and f' {self.place}'}: {self.sentence}"

    @property
    def place(self) -> str:
        """Return the path and the location on one line: "attention.kv_heads (study.yaml:12)"."""
        place = " ".join(part for part in (self.path, f"({self.location})" if self.location else "") if part)
        return _one_line(place)

    @property
    def sentence(self) -> str:
        """Return the message, what is valid, and what to do, on one line."""
        line = self.message
        if self.suggestion:
            line += f'; did you mean "{self.suggestion}"?'
        if self.valid:
            line += f"{'' if self.suggestion else ';'} valid: {self.valid}"
        if self.hint:
            line += f"; {self.hint}"
        return _one_line(line)


def _one_line(text: str) -> str:
    return escape_unprintable(text).replace("\n", "\\n")


class ParibusError(Exception):
    """A mistake that the user can correct, with every problem found, not only the first."""

    exit_code: ClassVar[int] = EXIT_FAILED

    def __init__(self, *problems: Problem | str) -> None:
        self.problems: tuple[Problem, ...] = tuple(
            Problem(code="failed", message=problem) if isinstance(problem, str) else problem for problem in problems
        )
        super().__init__("\n".join(str(problem) for problem in self.problems))

    def _render_traceback_(self) -> list[str]:
        """Return what IPython and notebooks show: the problems, without frames of this package."""
        return [f"{type(self).__name__}: {line}" for line in str(self).split("\n")]

    def __reduce__(self) -> tuple[type[ParibusError], tuple[Problem, ...]]:
        return type(self), self.problems


class SpecError(ParibusError):
    """Invalid spec, study or command line."""

    exit_code = EXIT_SPEC


class PluginError(ParibusError):
    """A required plugin failed to load, or registers something invalid."""

    exit_code = EXIT_PLUGIN


class DataError(ParibusError):
    """The corpus or the tokenizer does not support what the spec requires."""

    exit_code = EXIT_DATA


class StoreError(ParibusError):
    """A file could not be written or read, is damaged, or is locked by another process."""

    exit_code = EXIT_STORE


class NotComparableError(ParibusError):
    """The trials were not run under the same conditions, so there is no verdict."""

    exit_code = EXIT_NOT_COMPARABLE


def missing_package(
    package: str, extra: str, user: str, *, path: str, location: str = "", alternative: str = ""
) -> Problem:
    """Return the problem of a package that is not installed: `user` needs it, and the extra of paribus installs it."""
    valid = f"pip install 'paribus[{extra}]'" + (f", or {alternative}" if alternative else "")
    message = f"{user} needs the package `{package}`, which is not installed"
    return Problem(code="not-installed", path=path, location=location, message=message, valid=valid)


def closest_match(name: str, known_names: Iterable[str]) -> str:
    """Return the known name that is most similar to `name`, or "" if none is similar."""
    matches = difflib.get_close_matches(str(name), list(known_names), n=1, cutoff=0.6)
    return matches[0] if matches else ""


def join_names(names: Iterable[object], limit: int = 24) -> str:
    """Join names as `a, b, c`; after `limit` names, give the count of the rest."""
    texts: Sequence[str] = [str(name) for name in names]
    rest = f", … {len(texts) - limit} more" if len(texts) > limit else ""
    return ", ".join(texts[:limit]) + rest


def escape_unprintable(text: str) -> str:
    """Escape control characters and direction overrides, so that a name in a spec never controls a terminal."""
    return "".join(
        character if character == "\n" or character.isprintable() else f"\\u{ord(character):04x}" for character in text
    )
