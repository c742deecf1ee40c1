"""The command `paribus`: one file a verb, each imported when it is asked for."""

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
from paribus.cli.console import Session, note, out_json
from paribus.errors import (
    EXIT_BUG,
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
from paribus.registry.plugin_sources import find_plugin_sources

_FULL: Final = (errno.ENOSPC, errno.EIO, errno.EDQUOT)
_HELPERS: Final = frozenset({"main", "console"})
_GLOBAL: Final = {"--plugin": 1, "--no-plugins": 0, "--debug": 0}  # options of every verb, and how many words follow


@final
class Verbs(click.Group):
    """The verbs are the modules of this package that do not begin with an underscore: `list.py` defines `verb`."""

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
        known = self.list_commands(ctx)
        if args and args[0] not in known and not args[0].startswith("-"):
            near = closest_match(args[0], known)
            meant = f'; did you mean "{near}"?' if near else ";"
            raise click.UsageError(f'unknown command "{args[0]}"{meant} valid: {join_names(known)}', ctx)
        return super().resolve_command(ctx, args)


@click.group(cls=Verbs, invoke_without_command=True, context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--plugin", "plugins", multiple=True, type=click.Path(path_type=Path), help="A plugin in one file.")
@click.option("--no-plugins", is_flag=True, help="Load the built-in plugins alone.")
@click.option("--debug", is_flag=True, help="Show the traceback of an error.")
@click.version_option(paribus.__version__, prog_name="paribus")
@click.pass_context
def group(ctx: click.Context, plugins: tuple[Path, ...], no_plugins: bool, debug: bool) -> None:
    """Swap one part of a transformer, keep all else equal, and learn whether it mattered."""
    ctx.obj = Session(plugins, no_plugins, debug)
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help())


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one verb; what it returns is the exit code, and so is the kind of what it raises."""
    try:
        return _run(argv)
    finally:
        for stream in (sys.stdout, sys.stderr):
            _let_go(stream)


def _let_go(stream: Any) -> None:
    """What a stream still holds and cannot write Python would try again as it ends, with an exit code of its own."""
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
            reconfigure(errors="backslashreplace")  # a terminal without ≥ is no reason to fail
    try:
        with group.make_context("paribus", list(words)) as context:
            code = group.invoke(context)
        if sys.stdout is not None:
            sys.stdout.flush()
    except BaseException as error:
        return _told(error, debug="--debug" in words, as_json="--json" in words)
    return code if isinstance(code, int) else EXIT_OK


def _global_first(words: Sequence[str]) -> list[str]:
    """The options of every verb, wherever they stand, before the verb: that is where click looks for them."""
    first: list[str] = []
    rest: list[str] = []
    left = list(words)
    while left:
        word = left.pop(0)
        if word == "--":
            rest += [word, *left]
            break
        option, equals, _ = word.partition("=")
        if option not in _GLOBAL:
            rest.append(word)
            continue
        first.append(word)
        if not equals:
            first += left[: _GLOBAL[option]]
            del left[: _GLOBAL[option]]
    return [*first, *rest]


def _told(error: BaseException, *, debug: bool, as_json: bool) -> int:
    """Tells what went wrong, a line a problem (for whoever asked for JSON, as that too), and answers the exit code."""
    if isinstance(error, (click.exceptions.Exit, SystemExit)):
        return _code(error)
    if isinstance(error, BrokenPipeError):  # who read has read enough
        return EXIT_OK
    if isinstance(error, OSError) and error.filename is None and error.errno in _FULL:  # a store tells of its own files
        what = f"stdout could not be written: {error.strerror}"
        error = StoreError(Problem(code="cannot-write", message=what))
    if debug:
        note("".join(traceback.format_exception(error)).rstrip())
    if isinstance(error, click.ClickException):
        error = SpecError(Problem(code="usage", message=error.format_message()))
    if isinstance(error, ParibusError):
        for problem in error.problems:
            note(str(problem))
        if as_json:
            with suppress(ParibusError, BrokenPipeError):  # stdout is gone, or was what went wrong
                out_json({"ok": False, "problems": [dataclasses.asdict(problem) for problem in error.problems]})
        return error.exit_code
    if isinstance(error, (KeyboardInterrupt, click.Abort)):
        note("interrupted")
        return EXIT_INTERRUPTED
    return _unexpected(error)


def _unexpected(error: BaseException) -> int:
    """What nobody raised on purpose: a stranger's plugin failed, or we did."""
    last = traceback.extract_tb(error.__traceback__)[-1]
    theirs = _strange(error)
    at = theirs or last
    what = f"{type(error).__name__}: {next(iter(str(error).splitlines()), '')} ({at.filename}:{at.lineno})"
    if theirs is not None:
        note(str(Problem(code="plugin-failed", message=f"{what}; this is no part of paribus; --debug shows the whole")))
        return EXIT_PLUGIN
    note(
        str(Problem(code="bug", message=f"{what}; this is a bug in paribus, please report it with what --debug shows"))
    )
    return EXIT_BUG


def _strange(error: BaseException) -> traceback.FrameSummary | None:
    """Where a stranger's plugin failed: the last frame that is of no library, if it is not one of ours."""
    names = {"paribus", *(door.value.partition(".")[0] for door in find_plugin_sources(no_plugins=True))}
    places = [found.origin for name in names if (found := importlib.util.find_spec(name)) is not None and found.origin]
    ours = [Path(place).parent for place in places]
    libraries = [Path(each) for each in (*sysconfig.get_paths().values(), *site.getsitepackages())]
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        path = Path(frame.filename)
        if any(path.is_relative_to(root) for root in ours):
            return None
        if path.is_file() and not any(path.is_relative_to(root) for root in libraries):
            return frame
    return None


def _code(error: click.exceptions.Exit | SystemExit) -> int:
    if isinstance(error, click.exceptions.Exit):
        return error.exit_code
    if isinstance(error.code, str):
        note(error.code)
        return 1
    return error.code or EXIT_OK
