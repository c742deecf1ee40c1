"""What `paribus compare` does beside its table: the shapes that one is written in, gates, and benchmark reports.

What `paribus compare` does with two sets of trials, or with two trials.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paribus.cli.console import note, out, out_json
from paribus.errors import EXIT_FAILED, EXIT_OK, NotComparableError, Problem, SpecError

if TYPE_CHECKING:
    from paribus.analysis.gates import Gate, GateResult
    from paribus.analysis.grid import Grid
    from paribus.analysis.load_runs import TrialSet


def reports(before: str, after: str | None, gates: Sequence[Gate], shape: str, *, across: bool) -> int | None:
    """Two benchmark reports, or two folders of them; None where neither side is any, and the exit code else."""
    from paribus.analysis.benchmark_ratios import compare_benchmarks, read_both_sides
    from paribus.analysis.benchmark_rounds import is_report
    from paribus.analysis.gates import check_benchmarks

    if after is None:
        if is_report(Path(before)):
            raise usage("a benchmark report is compared with another one", f"`paribus compare {before} AFTER`")
        return None
    sides = read_both_sides(Path(before), Path(after))
    if sides is None:
        return None
    table = compare_benchmarks(*sides, across=across)
    held = check_benchmarks(gates, table)
    grid = table.grid()
    _show(shape, grid, table.to_json, "benchmarks", held)
    return EXIT_FAILED if tripped(held) else EXIT_OK


def shown(
    shape: str,
    ways: dict[str, Callable[[], Any]],
    grid: Callable[[], Grid],
    document: Callable[[], dict[str, Any]],
    name: str,
    held: Sequence[GateResult] = (),
) -> None:
    """A table in the shape that was asked for, and what became of the gates."""
    if shape == "json":
        out_json({**document(), **({"gates": [each.to_json() for each in held]} if held else {})})
    elif shape == "csv":
        from paribus.report.table_views import to_csv

        out(to_csv(grid().records).removesuffix("\n"))
    elif shape == "latex":
        from paribus.report.latex import latex

        out(latex(grid(), name).removesuffix("\n"))
    else:
        ways[shape]()
    for line in (line for each in held for line in each.lines):
        note(line)


def tripped(held: Sequence[GateResult]) -> bool:
    return any(each.tripped for each in held)


def usage(what: str, valid: str) -> SpecError:
    return SpecError(Problem(code="usage", message=what, valid=valid))


_VALID = "two trials (folders or identities), two folders of trials, NAME@CODE of the store, or two benchmark reports"


def sides(
    before: str, after: str, store: Path, gates: Sequence[Gate], shape: str, *, metric: str, elsewhere: bool
) -> int:
    """Two trials, or two folders of trials; the exit code says whether all that was compared finished."""
    from paribus.analysis.compare_runs import compare_runs
    from paribus.analysis.compare_trials import compare_trials
    from paribus.analysis.gates import check_table

    one, other = (_side(text, store) for text in (before, after))
    if one.is_single and other.is_single:
        if gates:
            what = "two single trials have no interval, so that no gate could ever trip"
            valid = "two folders of trials, with several seeds each"
            raise NotComparableError(Problem(code="no-interval", path="--fail-if", message=what, valid=valid))
        held = compare_trials(one, other, elsewhere=elsewhere)
        _show(shape, held.grid(), held.to_json, "trials")
        return EXIT_OK
    table = compare_runs(one, other, metric=metric, elsewhere=elsewhere)
    found = check_table(gates, table)
    _show(shape, table.grid(), table.to_json, "trials", found)
    return EXIT_OK if table.ok and not tripped(found) else EXIT_FAILED


def _side(text: str, store: Path) -> TrialSet:
    from paribus.analysis.load_runs import load_trial_set

    found = load_trial_set(text, store)
    if found is None:
        raise usage(f"`{text}` is no trial, no folder of trials, and no benchmark report", _VALID)
    return found


def _show(
    shape: str, grid: Grid, document: Callable[[], dict[str, Any]], name: str, held: Sequence[GateResult] = ()
) -> None:
    from paribus.report.markdown import grid_markdown
    from paribus.report.terminal import show_grid

    ways = {"text": lambda: show_grid(grid), "markdown": lambda: out(grid_markdown(grid))}
    shown(shape, ways, lambda: grid, document, name, held)
