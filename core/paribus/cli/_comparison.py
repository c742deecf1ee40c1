"""Options and output of the commands that compare: the format of a table, its columns and its gates."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import wraps
from typing import TYPE_CHECKING, Any, Final, TypeVar, final

import click

from paribus.cli.console import note, out, out_versioned
from paribus.errors import EXIT_FAILED, EXIT_OK, Problem, SpecError

if TYPE_CHECKING:
    from paribus.analysis.formatting import Grid
    from paribus.analysis.gates import Gate, GateResult

FORMATS: Final = ("markdown", "latex", "csv", "json")
across_machines_option: Final = click.option(
    "--across-machines",
    "across",
    is_flag=True,
    help="Also compare runs of different machines or settings, with a warning.",
)
strict_option: Final = click.option(
    "--strict",
    is_flag=True,
    help="Refuse pairs of trials on different processor models or numbers of threads, which are only marked otherwise.",
)
notes_option: Final = click.option(
    "--notes",
    "with_notes",
    is_flag=True,
    help="Explain the table: what its verdicts hold for, and how it was measured.",
)
_Command = TypeVar("_Command", bound=Callable[..., int])


@final
@dataclass(frozen=True, kw_only=True)
class Output:
    """Format of a table, with the gates that are checked."""

    format: str  # one of FORMATS, or `text`
    columns: tuple[str, ...] | None
    gates: Sequence[Gate]
    width: float | None = None  # of the text of a paper, in points

    def print_grid(
        self, grid: Grid, document: dict[str, Any], name: str, results: Sequence[GateResult] = (), *, ok: bool = True
    ) -> int:
        """Print a grid and the results of the gates, and return the exit code."""
        from paribus.report.markdown import grid_markdown
        from paribus.report.terminal import show_grid

        chosen = grid if self.format == "csv" else grid.select(self.columns)
        printers = {"text": lambda: show_grid(chosen), "markdown": lambda: out(grid_markdown(chosen))}
        return self.print_table(printers, lambda: chosen, document, name, results, ok=ok)

    def print_table(
        self,
        printers: dict[str, Callable[[], None]],
        grid: Callable[[], Grid],
        document: dict[str, Any],
        name: str,
        results: Sequence[GateResult],
        *,
        ok: bool,
    ) -> int:
        """Print a table, by its own printers or as a grid, and the results of the gates; return the exit code."""
        if self.format == "json":
            out_versioned({**document, **({"gates": [result.to_json() for result in results]} if results else {})})
        elif self.format == "csv":
            from paribus.report.table_views import to_csv

            out(to_csv(grid().records, self.columns).removesuffix("\n"))
        elif self.format == "latex":
            from paribus.report.latex import latex

            out(latex(grid(), name, self.width).removesuffix("\n"))
        else:
            printers[self.format]()
        for result in results:
            for line in result.lines:
                note(line)
        return EXIT_OK if ok and not any(result.tripped for result in results) else EXIT_FAILED


def output_options(command: _Command) -> Callable[..., int]:
    """Add the options of a format, of columns and of gates to a command, which gets them as `output`."""

    @click.option(
        "--fail-if",
        "gates",
        multiple=True,
        metavar="GATE",
        help="Exit with 1 if something is slower than a limit (slower:5%), or worse, of trials (worse:0.01).",
    )
    @click.option("--markdown", is_flag=True, help="Print Markdown, for a README or a pull request.")
    @click.option("--latex", is_flag=True, help="Print LaTeX with booktabs, for a paper.")
    @click.option(
        "--width",
        type=click.FloatRange(min=100, max=2000),
        metavar="PT",
        help="Fit each table of --latex into a text of this width in points: 241 for a column of two, 397 for NeurIPS.",
    )
    @click.option("--csv", is_flag=True, help="Print CSV, for a spreadsheet.")
    @click.option("--json", is_flag=True, help="Print everything as JSON, unrounded.")
    @click.option(
        "--columns",
        metavar="NAMES",
        help="Columns to print, in order, separated by commas; an unknown name lists the valid ones.",
    )
    @wraps(command)
    def with_output(
        *arguments: Any, gates: tuple[str, ...], columns: str | None, width: float | None, **options: Any
    ) -> int:
        formats = [name for name in FORMATS if options.pop(name)]
        return command(*arguments, output=_output(formats, columns, gates, width), **options)

    return with_output


def _output(formats: Sequence[str], columns: str | None, gates: Sequence[str], width: float | None) -> Output:
    from paribus.analysis.gates import parse_gates

    if len(formats) > 1:
        raise usage_error(f"--{formats[0]} and --{formats[1]} are two formats", "one of them")
    if formats == ["json"] and columns is not None:
        raise usage_error("--json has all columns", "--columns with --markdown, --latex, --csv or none of them")
    if width is not None and formats != ["latex"]:
        raise usage_error("--width is the width of the text of a paper", "--width with --latex")
    names = None if columns is None else tuple(name.strip() for name in columns.split(",") if name.strip())
    return Output(format=formats[0] if formats else "text", columns=names, gates=parse_gates(gates), width=width)


def usage_error(message: str, valid: str) -> SpecError:
    return SpecError(Problem(code="usage", message=message, valid=valid))
