"""Session, input and output shared by all commands."""

from __future__ import annotations

import json
import shlex
import shutil
import sys
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, final

import click

from paribus.errors import DataError, Problem, SpecError, StoreError, escape_unprintable
from paribus.storage.saved_model import RUNS, find_model, read_model

if TYPE_CHECKING:
    from paribus.models.lightning_module import Model
    from paribus.planning.api import PlannedStudy
    from paribus.registry import Index, Registry
    from paribus.specs.load import Source
    from paribus.storage.saved_model import SavedModel

STORE: Final = RUNS  # default folder of trials
store_option: Final = click.option(
    "--store", type=click.Path(path_type=Path), default=STORE, show_default=True, help="Folder of the records."
)


def refuse_repeated(context: click.Context, parameter: click.Parameter, overrides: tuple[str, ...]) -> tuple[str, ...]:
    """Return the overrides of a command, or raise an error for keys that are set twice."""
    from paribus.specs.load import repeated_overrides

    spec = context.params.get("spec") or ""  # the first override, if the spec is left out: `train from=RUN seed=1`
    is_first = parameter.name == "overrides" and "=" in spec
    problems = repeated_overrides((spec, *overrides) if is_first else overrides)
    if problems:
        raise SpecError(*problems)
    return overrides


JSON_VERSION: Final = 1  # of what `--json` prints: a key that is removed, or that means something else, raises it
_NARROWEST = 20  # minimum width of wrapped text


@final
@dataclass(frozen=True)
class Session:
    """Options given before the command, as in `paribus --plugin ./mine.py list`; passed by `@click.pass_obj`."""

    plugins: tuple[Path, ...] = ()
    no_plugins: bool = False
    debug: bool = False
    printed_warnings: set[str] = field(default_factory=set)  # each is printed once
    named_plugins: list[Path] = field(default_factory=list)  # files that the study, spec or model of a command names

    def index(self) -> Index:
        """Return the index of installed components, without torch. Broken plugins are reported on stderr."""
        from paribus import registry

        index = registry.index(plugins=self.plugins, no_plugins=self.no_plugins, on_message=note)
        index = registry.with_plugins(index, self.named_plugins, note)
        self._warn(index)
        return index

    def registry(self) -> Registry:
        """Return the registry of installed components. Broken plugins are reported on stderr."""
        from paribus import registry

        classes = registry.installed(plugins=self.plugins, no_plugins=self.no_plugins)
        classes = classes.with_plugins(self.named_plugins)
        self._warn(classes.index)
        return classes

    def study(self, name: str, *, registry: Registry | None = None, **options: Any) -> PlannedStudy:
        """Return a planned study, as `paribus.study` does; the session has its plugins from now on."""
        from paribus.planning.api import study

        planned = study(name, registry=registry or self.index(), **options)
        self._add_recorded(planned.recorded_plugins, "records or models of this study were")
        self.add_plugins(planned.index.plugin_files)
        return planned

    def add_spec_plugins(self, source: Source, overrides: Sequence[str] = ()) -> None:
        """Add the plugins that a spec names, and those that the models it starts from were made with."""
        from paribus.specs.named_plugins import files_of_sources, files_of_spec, may_name_files

        if may_name_files(source, overrides):
            self.add_plugins(files_of_spec(source, self.index()))
            self._add_recorded(files_of_sources(source, overrides, self.index()), "the saved model was")

    def add_model_plugins(self, model: SavedModel) -> None:
        """Add the plugins that a saved model was made with."""
        from paribus.specs.named_plugins import files_of_model

        if model.plugins:
            self._add_recorded(files_of_model(model, self.index()), "the saved model was")

    def add_plugins(self, files: Iterable[Path]) -> None:
        """Add plugin files to those that the session loads."""
        self.named_plugins.extend(path for path in files if path not in self.named_plugins)

    def _add_recorded(self, files: Sequence[Path], subject: str) -> None:
        for path in files:
            note(f"loading the plugin {path}, which {subject} made with")
        self.add_plugins(files)

    def command(self, verb: str, *words: str, store: Path = STORE) -> str:
        """Return a command for the user to run next, with the options of this session."""
        plugins = [word for path in self.plugins for word in ("--plugin", str(path))]
        isolation = ["--no-plugins"] if self.no_plugins else []
        store_option = ["--store", str(store)] if store != STORE else []
        return shlex.join(["paribus", *plugins, *isolation, verb, *words, *store_option])

    def _warn(self, index: Index) -> None:
        for warning in index.warnings():
            if warning not in self.printed_warnings:
                note(f"warning: {warning}")
            self.printed_warnings.add(warning)


def out(text: str = "") -> None:
    """Print one line of the result to stdout."""
    try:
        click.echo(escape_unprintable(text))
    except BrokenPipeError:
        raise
    except OSError as error:
        message = f"cannot write to stdout: {error.strerror or error}"
        raise StoreError(Problem(code="cannot-write", message=message)) from error


def note(text: str) -> None:
    """Print progress, a warning or an error to stderr. A failure to write is ignored."""
    try:
        click.echo(escape_unprintable(text), err=True)
    except OSError:
        return


def memory_warning(needed: int, free: int) -> str:
    """Return the text for a training step that needs more memory than is free."""
    from paribus.analysis.formatting import compact

    return (
        f"a step needs about {compact(needed, 1024, 'BKMGT')} of memory, and {compact(free, 1024, 'BKMGT')} are free; "
        "a smaller `data.batch`, a larger `trainer.accumulate_grad_batches`, or `trainer.activation_checkpointing` "
        "need less"
    )


def out_json(document: Any) -> None:
    """Print the result as JSON, for `--json`."""
    out(json.dumps(document, indent=2, allow_nan=False))


def out_versioned(document: Mapping[str, Any]) -> None:
    """Print a document that `paribus schema` describes, with the version of its format."""
    out_json({"schema": JSON_VERSION, **document})


def refuse_full(folder: Path) -> None:
    """Raise an error unless a folder is new or empty."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        message = f"`{folder}` is not empty, and files are never overwritten"
        raise StoreError(Problem(code="not-empty", location=str(folder), message=message, valid="a new folder"))


def refuse_other_file(path: Path, command: str) -> None:
    """Raise an error if the file of a page exists and is no page that the command wrote."""
    from paribus.report.html import generator_tag

    try:
        if path.exists() and not (path.is_file() and generator_tag(command).encode() in _first_bytes(path)):
            message = f"this file was not written by `paribus {command}`, and other files are never overwritten"
            raise StoreError(Problem(code="not-empty", location=str(path), message=message, valid="a new file"))
    except OSError as error:
        message = f"cannot read this file: {error.strerror or error}"
        raise StoreError(Problem(code="cannot-read", location=str(path), message=message)) from error


def _first_bytes(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(1000)


def terminal_columns() -> int:
    """Return the width of the terminal; output to a file is not wrapped."""
    return shutil.get_terminal_size().columns if sys.stdout is not None and sys.stdout.isatty() else 10_000


def table(rows: Iterable[Sequence[str]], indent: int = 0) -> list[str]:
    """Format rows as lines. The last column is wrapped, in a narrow terminal below the others."""
    cells = [[escape_unprintable(cell) for cell in row] for row in rows]
    if not cells:
        return []
    widths = [max(len(row[place]) for row in cells) for place in range(len(cells[0]) - 1)]
    margin = indent + sum(widths) + 2 * len(widths)
    room = terminal_columns() - margin
    lines: list[str] = []
    for row in cells:
        start = " " * indent + "".join(f"{cell:<{width}}  " for cell, width in zip(row[:-1], widths, strict=True))
        if room < _NARROWEST:
            lines += [start.rstrip(), *wrapped(row[-1], indent + 4)]
            continue
        text = textwrap.wrap(row[-1], room) or [""]
        lines += [(start + text[0]).rstrip(), *(" " * margin + line for line in text[1:])]
    return lines


def wrapped(text: str, indent: int = 0) -> list[str]:
    """Wrap a paragraph to the width of the terminal."""
    margin = " " * indent
    return textwrap.wrap(
        text, max(terminal_columns(), indent + _NARROWEST), initial_indent=margin, subsequent_indent=margin
    )


def load_named_model(session: Session, name: str, store: Path) -> Model:
    """Load the model of a folder, or of the trial in `store` whose identity has this prefix."""
    saved_model = read_model(find_model(name, store))
    session.add_model_plugins(saved_model)
    from paribus.models.assemble import load_model

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
    return _text_lines(data, str(file) if file is not None else "stdin", kind)


def _text_lines(data: bytes, location: str, kind: str) -> list[str]:
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
