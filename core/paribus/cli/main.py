"""Command line of Paribus. Each command is a module of this package and is imported when it runs."""

from __future__ import annotations

import dataclasses
import errno
import importlib
import importlib.util
import os
import pkgutil
import site
import sys
import sysconfig
import traceback
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, final

import click

import paribus
from paribus import cli
from paribus.cli.console import Session, note, out_versioned
from paribus.errors import (
    EXIT_BUG,
    EXIT_FAILED,
    EXIT_INTERRUPTED,
    EXIT_OK,
    EXIT_PLUGIN,
    ParibusError,
    Problem,
    SpecError,
    StoreError,
    closest_match,
    join_names,
)
from paribus.registry.plugin_loading import find_plugin_sources

_FULL: Final = (errno.ENOSPC, errno.EIO, errno.EDQUOT)
_HELPERS: Final = frozenset({"main", "console", "output_schemas", "slot_contract"})
_GLOBAL: Final = {
    "--plugin": 1,
    "--no-plugins": 0,
    "--debug": 0,
}  # options of every command, with the number of their values


@final
class Verbs(click.Group):
    """Click group of the public modules of this package: `list.py` defines the command `list` as `verb`."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        names = (module.name for module in pkgutil.iter_modules(cli.__path__))
        return sorted(name.replace("_", "-") for name in names if name not in _HELPERS and not name.startswith("_"))

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self.list_commands(ctx):
            return None
        module = importlib.import_module(f"paribus.cli.{cmd_name.replace('-', '_')}")
        verb: click.Command = module.verb
        return verb

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        commands = self.list_commands(ctx)
        if args and args[0] not in commands and not args[0].startswith("-"):
            suggestion = closest_match(args[0], commands)
            hint = f'; did you mean "{suggestion}"?' if suggestion else ";"
            raise click.UsageError(f'unknown command "{args[0]}"{hint} valid: {join_names(commands)}', ctx)
        return super().resolve_command(ctx, args)


@click.group(cls=Verbs, invoke_without_command=True, context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--plugin",
    "plugins",
    multiple=True,
    type=click.Path(path_type=Path),
    help="Load a plugin from a Python file; repeatable.",
)
@click.option("--no-plugins", is_flag=True, help="Load only the built-in plugins.")
@click.option("--debug", is_flag=True, help="Show the traceback of an error.")
@click.version_option(paribus.__version__, prog_name="paribus")
@click.pass_context
def group(ctx: click.Context, plugins: tuple[Path, ...], no_plugins: bool, debug: bool) -> None:
    """Swap one component of a transformer, keep all else equal, and measure the difference."""
    ctx.obj = Session(plugins, no_plugins, debug)
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help())


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return the exit code."""
    try:
        return _run(argv)
    finally:
        for stream in (sys.stdout, sys.stderr):
            _flush_or_discard(stream)


def _flush_or_discard(stream: Any) -> None:
    """Flush a stream, or discard what it cannot write: Python would retry at exit and change the exit code."""
    try:
        if stream is not None:
            stream.flush()
    except (OSError, ValueError):  # full, or closed
        with suppress(OSError, ValueError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def _run(argv: Sequence[str] | None) -> int:
    words = _global_first(sys.argv[1:] if argv is None else argv)
    for stream in (sys.stdout, sys.stderr):
        reconfigure: Any = getattr(stream, "reconfigure", None)
        if reconfigure is not None:
            reconfigure(errors="backslashreplace")  # a terminal whose encoding lacks ≥ must not fail the command
    try:
        _check_working_folder()
        with group.make_context("paribus", list(words)) as context:
            code = group.invoke(context)
        if sys.stdout is not None:
            sys.stdout.flush()
    except BaseException as error:
        return _report_error(error, debug="--debug" in words, as_json="--json" in words)
    return code if isinstance(code, int) else EXIT_OK


def _check_working_folder() -> None:
    """Raise an error if the working directory was deleted: relative paths mean nothing then."""
    try:
        os.getcwd()  # noqa: PTH109  # Path.cwd() is the same
    except FileNotFoundError:
        message = "the working directory does not exist any more"
        valid = "cd to an existing directory, and run the command again"
        raise StoreError(Problem(code="no-working-directory", message=message, valid=valid)) from None


def _global_first(words: Sequence[str]) -> list[str]:
    """Move the options of every command in front of the command, where click expects them."""
    global_words: list[str] = []
    other_words: list[str] = []
    remaining = list(words)
    while remaining:
        word = remaining.pop(0)
        if word == "--":
            other_words += [word, *remaining]
            break
        option, equals, _ = word.partition("=")
        if option not in _GLOBAL:
            other_words.append(word)
            continue
        global_words.append(word)
        if not equals:
            global_words += remaining[: _GLOBAL[option]]
            del remaining[: _GLOBAL[option]]
    return [*global_words, *other_words]


def _report_error(error: BaseException, *, debug: bool, as_json: bool) -> int:
    """Print an error, one line for each problem and as JSON with `--json`, and return the exit code."""
    if isinstance(error, (click.exceptions.Exit, SystemExit)):
        return _exit_code(error)
    if isinstance(error, BrokenPipeError):  # the reader has closed the pipe
        return EXIT_OK
    if isinstance(error, OSError) and error.filename is None and error.errno in _FULL:  # errors of files have a name
        message = f"cannot write to stdout: {error.strerror}"
        error = StoreError(Problem(code="cannot-write", message=message))
    if isinstance(error, FileNotFoundError):
        try:
            _check_working_folder()
        except StoreError as deleted:  # during the command
            error = deleted
    if debug:
        note("".join(traceback.format_exception(error)).rstrip())
    if isinstance(error, click.ClickException):
        error = SpecError(Problem(code="usage", message=error.format_message()))
    if isinstance(error, ParibusError):
        for problem in error.problems:
            note(str(problem))
        if as_json:
            with suppress(ParibusError, BrokenPipeError):  # stdout itself may have failed
                out_versioned({"ok": False, "problems": [dataclasses.asdict(problem) for problem in error.problems]})
        return error.exit_code
    if isinstance(error, (KeyboardInterrupt, click.Abort)):
        note("interrupted")
        return EXIT_INTERRUPTED
    return _unexpected(error)


def _unexpected(error: BaseException) -> int:
    """Report an unexpected exception: too little memory, a failure of a third-party plugin, or a bug of Paribus."""
    from paribus.runner.outcomes import describe_failure

    failure = describe_failure(error)
    if failure.state == "out-of-memory":
        note(str(Problem(code=failure.state, message=failure.reason)))
        return EXIT_FAILED
    last_frame = traceback.extract_tb(error.__traceback__)[-1]
    plugin_frame = _third_party_frame(error)
    frame = plugin_frame or last_frame
    message = f"{type(error).__name__}: {next(iter(str(error).splitlines()), '')} ({frame.filename}:{frame.lineno})"
    if plugin_frame is not None:
        note(
            str(
                Problem(
                    code="plugin-failed",
                    message=f"{message}; this code is not part of paribus; --debug shows the traceback",
                )
            )
        )
        return EXIT_PLUGIN
    note(
        str(
            Problem(
                code="bug", message=f"{message}; this is a bug in paribus; please report it with the output of --debug"
            )
        )
    )
    return EXIT_BUG


def _third_party_frame(error: BaseException) -> traceback.FrameSummary | None:
    """Return the last frame outside of libraries, if it is in a third-party plugin."""
    names = {"paribus", *(door.value.partition(".")[0] for door in find_plugin_sources(no_plugins=True))}
    origins = [
        module_spec.origin
        for name in names
        if (module_spec := importlib.util.find_spec(name)) is not None and module_spec.origin
    ]
    own_folders = [Path(place).parent for place in origins]
    libraries = [Path(folder) for folder in (*sysconfig.get_paths().values(), *site.getsitepackages())]
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        path = Path(frame.filename)
        if any(path.is_relative_to(root) for root in own_folders):
            return None
        if path.is_file() and not any(path.is_relative_to(root) for root in libraries):
            return frame
    return None


def _exit_code(error: click.exceptions.Exit | SystemExit) -> int:
    if isinstance(error, click.exceptions.Exit):
        return error.exit_code
    if isinstance(error.code, str):
        note(error.code)
        return 1
    return error.code or EXIT_OK
