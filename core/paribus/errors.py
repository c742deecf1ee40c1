"""What a user sees when something is wrong: one line a problem, all of them at once, and an exit code.

Nothing here imports anything heavy: every layer may raise these.
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
    """One thing that is wrong: where it is, what was found, what would do."""

    code: str  # short and stable, for tests and for searching: "unknown-key", "out-of-range"
    path: str = ""  # "attention.kv_heads"; empty where the whole file is meant
    where: str = ""  # "study.yaml:12", "override 2"
    what: str
    valid: str = ""
    nearest: str = ""

    def __str__(self) -> str:
        place = " ".join(part for part in (self.path, f"({self.where})" if self.where else "") if part)
        line = f"error[{self.code}]" + (f" {place}" if place else "") + f": {self.what}"
        if self.valid:
            line += f"; valid: {self.valid}"
        if self.nearest:
            line += f"; did you mean {self.nearest}?"
        return printable(line).replace("\n", "\\n")


class ParibusError(Exception):
    """A mistake that its reader can mend. It carries every problem found, never only the first."""

    exit_code: ClassVar[int] = EXIT_FAILED

    def __init__(self, *problems: Problem | str) -> None:
        self.problems: tuple[Problem, ...] = tuple(
            Problem(code="failed", what=problem) if isinstance(problem, str) else problem for problem in problems
        )
        super().__init__("\n".join(str(problem) for problem in self.problems))

    def __reduce__(self) -> tuple[type[ParibusError], tuple[Problem, ...]]:
        return type(self), self.problems


class SpecError(ParibusError):
    """The spec, the study or the command line is wrong."""

    exit_code = EXIT_SPEC


class PluginError(ParibusError):
    """A plugin that is needed could not be loaded, or claims what it may not."""

    exit_code = EXIT_PLUGIN


class DataError(ParibusError):
    """The corpus or the tokenizer cannot serve what the spec asks of it."""

    exit_code = EXIT_DATA


class StoreError(ParibusError):
    """A file could not be written, read or trusted, or somebody else holds it."""

    exit_code = EXIT_STORE


class NotComparableError(ParibusError):
    """The trials were not run under the same conditions, so no verdict is given."""

    exit_code = EXIT_NOT_COMPARABLE


def nearest(name: str, known: Iterable[str]) -> str:
    """The known name most like `name`, or nothing where none is like it."""
    found = difflib.get_close_matches(str(name), list(known), n=1, cutoff=0.6)
    return f"`{found[0]}`" if found else ""


def listed(names: Iterable[object], most: int = 24) -> str:
    """`a, b, c`: names in the order given, cut with a count where there are too many to read."""
    shown: Sequence[str] = [str(name) for name in names]
    more = f", … {len(shown) - most} more" if len(shown) > most else ""
    return ", ".join(shown[:most]) + more


def printable(text: str) -> str:
    """Text with control characters and direction overrides escaped: a name in a spec never drives a terminal."""
    return "".join(
        character if character == "\n" or character.isprintable() else f"\\u{ord(character):04x}" for character in text
    )
