"""What verbs share: how they ask for what is installed, and how they print."""

from __future__ import annotations

import json
import shlex
import shutil
import sys
import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, final

import click

from paribus.errors import Problem, StoreError, escape_unprintable
from paribus.storage.saved_model import RUNS

if TYPE_CHECKING:
    from paribus.registry import Index, Registry

STORE: Final = RUNS  # where trials are kept unless another place is named
_NARROWEST = 20  # columns that are still worth wrapping text in


@final
@dataclass(frozen=True)
class Session:
    """What was asked for before the verb: `paribus --plugin ./mine.py list`. Verbs get it by `@click.pass_obj`."""

    plugins: tuple[Path, ...] = ()
    no_plugins: bool = False
    debug: bool = False
    told: set[str] = field(default_factory=set)  # warnings are told once

    def index(self) -> Index:
        """What is installed, without torch; broken plugins are told of on stderr."""
        from paribus import registry

        found = registry.index(plugins=self.plugins, no_plugins=self.no_plugins, on_message=note)
        self._warn(found)
        return found

    def registry(self) -> Registry:
        """What is installed, with its classes; broken plugins are told of on stderr."""
        from paribus import registry

        found = registry.installed(plugins=self.plugins, no_plugins=self.no_plugins)
        self._warn(found.index)
        return found

    def command(self, verb: str, *words: str, store: Path = STORE) -> str:
        """A command to type next, with the options of this session: what it finds is what this one found."""
        plugins = [word for path in self.plugins for word in ("--plugin", str(path))]
        alone = ["--no-plugins"] if self.no_plugins else []
        elsewhere = ["--store", str(store)] if store != STORE else []
        return shlex.join(["paribus", *plugins, *alone, verb, *words, *elsewhere])

    def _warn(self, index: Index) -> None:
        for warning in index.warnings():
            if warning not in self.told:
                note(f"warning: {warning}")
            self.told.add(warning)


def out(text: str = "") -> None:
    """A line of the result, on stdout."""
    try:
        click.echo(escape_unprintable(text))
    except BrokenPipeError:
        raise
    except OSError as error:
        what = f"stdout could not be written: {error.strerror or error}"
        raise StoreError(Problem(code="cannot-write", message=what)) from error


def note(text: str) -> None:
    """A line of progress, a warning or an error, on stderr; that it cannot be written ends nothing."""
    try:
        click.echo(escape_unprintable(text), err=True)
    except OSError:
        return


def out_json(document: Any) -> None:
    """The result as JSON, for `--json`."""
    out(json.dumps(document, indent=2, allow_nan=False))


def refuse_full(folder: Path) -> None:
    """A folder that is to be written must be new, or empty."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        what = f"`{folder}` is not empty, and nothing is written over"
        raise StoreError(Problem(code="not-empty", location=str(folder), message=what, valid="a new folder"))


def columns() -> int:
    """How wide text may be; what is no terminal has no width."""
    return shutil.get_terminal_size().columns if sys.stdout is not None and sys.stdout.isatty() else 10_000


def table(rows: Iterable[Sequence[str]], indent: int = 0) -> list[str]:
    """Rows as lines, the last column wrapped to the terminal; under a narrow one it goes below the others."""
    cells = [[escape_unprintable(cell) for cell in row] for row in rows]
    if not cells:
        return []
    widths = [max(len(row[place]) for row in cells) for place in range(len(cells[0]) - 1)]
    left = indent + sum(widths) + 2 * len(widths)
    room = columns() - left
    lines: list[str] = []
    for row in cells:
        start = " " * indent + "".join(f"{cell:<{width}}  " for cell, width in zip(row[:-1], widths, strict=True))
        if room < _NARROWEST:
            lines += [start.rstrip(), *wrapped(row[-1], indent + 4)]
            continue
        text = textwrap.wrap(row[-1], room) or [""]
        lines += [(start + text[0]).rstrip(), *(" " * left + line for line in text[1:])]
    return lines


def wrapped(text: str, indent: int = 0) -> list[str]:
    """A paragraph as lines that the terminal can hold."""
    margin = " " * indent
    return textwrap.wrap(text, max(columns(), indent + _NARROWEST), initial_indent=margin, subsequent_indent=margin)
