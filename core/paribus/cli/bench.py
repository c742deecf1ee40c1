"""`paribus bench`: measurements of components."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from paribus.cli.console import Session, note, out, out_json, refuse_other_file
from paribus.errors import EXIT_FAILED, EXIT_OK, Problem, SpecError

if TYPE_CHECKING:
    from paribus.complexity.lab import Complexity, Settings

LENGTHS: Final = "256,512,1024,2048,4096"
WIDTHS: Final = "32,64,128,256,512"


def read_sizes(context: click.Context, parameter: click.Parameter, text: str) -> tuple[int, ...]:
    """Return the whole numbers of an option, separated by commas."""
    try:
        sizes = tuple(int(part) for part in text.split(","))
    except ValueError:
        sizes = ()
    if not sizes or min(sizes) < 1:
        message = f"expected whole numbers separated by commas, got `{text}`"
        raise SpecError(
            Problem(code="usage", path=f"--{parameter.name}", message=message, valid=str(parameter.default))
        )
    return sizes


@click.group("bench")
def verb() -> None:
    """Measure components."""


@verb.command("complexity")
@click.argument("attentions", nargs=-1, metavar="[ATTENTION]...")
@click.option("--lengths", default=LENGTHS, show_default=True, callback=read_sizes, help="Numbers of tokens, n.")
@click.option("--widths", default=WIDTHS, show_default=True, callback=read_sizes, help="Widths of the model, d.")
@click.option("--heads", type=click.IntRange(1), default=4, show_default=True, help="Number of heads.")
@click.option("--causal", is_flag=True, help="Measure attentions of a decoder.")
@click.option("--backward", is_flag=True, help="Measure forward and backward passes.")
@click.option("--device", default="cpu", show_default=True, metavar="NAME", help="cpu, cuda or cuda:N.")
@click.option("--rounds", type=click.IntRange(1), default=7, show_default=True, help="Timings of each size.")
@click.option(
    "--limit",
    type=click.FloatRange(0, min_open=True),
    default=0.5,
    show_default=True,
    help="Seconds of a pass; sizes that take longer are skipped, and listed.",
)
@click.option("-o", "--output", type=click.Path(path_type=Path), metavar="FILE", help="Also write an HTML page.")
@click.option("--markdown", "shape", flag_value="markdown", help="Print Markdown.")
@click.option("--csv", "shape", flag_value="csv", help="Print CSV: a row for each attention and size.")
@click.option("--json", "shape", flag_value="json", help="Print everything as JSON.")
@click.pass_obj
def complexity(
    session: Session,
    /,
    attentions: tuple[str, ...],
    output: Path | None,
    shape: str | None,
    **conditions: Any,
) -> int:
    """Measure how the cost of attentions grows with length and width.

    `paribus bench complexity mha restricted linear -o complexity.html`

    ATTENTION is a name, or `{name: restricted, window: 128}`; default: every registered one. They are compared with
    `mha`. The table has the closed form of the FLOPs, sequential operations, path lengths, exponents of counted FLOPs,
    measured time and memory, and the length from which an attention is cheaper. Exit code 1: the FLOPs that an
    attention declares are not those that torch counts.
    """
    from paribus.complexity.lab import Settings, measure
    from paribus.complexity.sublayer import candidates

    if output is not None:
        refuse_other_file(output, "bench")
    registry = session.registry()
    chosen = candidates(registry, attentions)
    settings = Settings(**conditions)
    _check_sizes(settings)
    result = measure(registry, chosen, settings, note)
    _print(result, shape or "text")
    if output is not None:
        _write_page(session, result, attentions, output)
    return EXIT_FAILED if any(profile.mismatch for profile in result.profiles) else EXIT_OK


def _check_sizes(settings: Settings) -> None:
    """Raise an error for a width that the heads cannot share, or a device that this machine does not have."""
    import torch

    problems = [
        Problem(code="not-divisible", path="--widths", message=f"{width} is not a multiple of {settings.heads} heads")
        for width in settings.widths
        if width % settings.heads
    ]
    try:
        kind = torch.device(settings.device).type
    except RuntimeError:
        kind = ""
    if kind not in ("cpu", "cuda") or (kind == "cuda" and not torch.cuda.is_available()):
        valid = "cpu, cuda, cuda:N" if torch.cuda.is_available() else "cpu; torch finds no CUDA device"
        problems.append(
            Problem(code="device", path="--device", message=f"cannot measure on `{settings.device}`", valid=valid)
        )
    if problems:
        raise SpecError(*problems)


def _print(result: Complexity, shape: str) -> None:
    from paribus.report.complexity_views import grids, records, to_json

    if shape == "json":
        out_json(to_json(result))
    elif shape == "csv":
        from paribus.report.table_views import to_csv

        out(to_csv(list(records(result))).removesuffix("\n"))
    elif shape == "markdown":
        from paribus.report.markdown import grid_markdown

        for grid in grids(result):
            out(grid_markdown(grid))
    else:
        from paribus.report.terminal import show_grid

        for number, grid in enumerate(grids(result)):
            out() if number else None
            show_grid(grid)


def _write_page(session: Session, result: Complexity, attentions: tuple[str, ...], path: Path) -> None:
    import torch

    from paribus.evidence.provenance import processor_name
    from paribus.report.complexity_page import complexity_page
    from paribus.report.provenance import git_commit
    from paribus.storage.atomic import write_bytes

    settings = result.settings
    device = torch.cuda.get_device_name(settings.device) if settings.device != "cpu" else processor_name()
    command = session.command("bench", "complexity", *attentions)
    about = [
        f"command: {command}",
        f"device: {device}, one thread, float32; torch {torch.__version__}",
        f"measured in {result.seconds:.0f} s",
        *([f"commit: {commit}"] if (commit := git_commit()) else []),
    ]
    write_bytes(path, complexity_page(result, about).encode())
    note(f"written: {path}")
