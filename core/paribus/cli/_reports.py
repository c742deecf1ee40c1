"""What `paribus compare` does beside its table: the shapes that one is written in, gates, and benchmark reports."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paribus.cli.console import note, out, out_json
from paribus.errors import EXIT_FAILED, EXIT_OK, Problem, SpecError

if TYPE_CHECKING:
    from paribus.report.gates import Gate, Held
    from paribus.report.shown.grid import Grid


def reports(before: str, after: str | None, gates: Sequence[Gate], shape: str, *, across: bool) -> int | None:
    """Two benchmark reports, or two folders of them; None where neither side is any, and the exit code else."""
    from paribus.report.benchmarks.ratios import both, ratios
    from paribus.report.benchmarks.rounds import is_report
    from paribus.report.gates import gate_ratios

    if after is None:
        if is_report(Path(before)):
            raise usage("a benchmark report is compared with another one", f"`paribus compare {before} AFTER`")
        return None
    sides = both(Path(before), Path(after))
    if sides is None:
        return None
    table = ratios(*sides, across=across)
    held = gate_ratios(gates, table)
    grid = table.grid()
    ways = {"text": grid.show, "markdown": lambda: out(grid.markdown())}
    shown(shape, ways, lambda: grid, table.to_json, "benchmarks", held)
    return EXIT_FAILED if tripped(held) else EXIT_OK


def shown(
    shape: str,
    ways: dict[str, Callable[[], Any]],
    grid: Callable[[], Grid],
    document: Callable[[], dict[str, Any]],
    name: str,
    held: Sequence[Held] = (),
) -> None:
    """A table in the shape that was asked for, and what became of the gates."""
    if shape == "json":
        out_json({**document(), **({"gates": [each.to_json() for each in held]} if held else {})})
    elif shape == "csv":
        from paribus.report.shown.separated import separated

        out(separated(grid().records).removesuffix("\n"))
    elif shape == "latex":
        from paribus.report.shown.latex import latex

        out(latex(grid(), name).removesuffix("\n"))
    else:
        ways[shape]()
    for line in (line for each in held for line in each.lines):
        note(line)


def tripped(held: Sequence[Held]) -> bool:
    return any(each.past for each in held)


def usage(what: str, valid: str) -> SpecError:
    return SpecError(Problem(code="usage", what=what, valid=valid))
