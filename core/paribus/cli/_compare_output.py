"""Output formats, gates, and comparisons of two sides for `paribus compare`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paribus.cli.console import note, out, out_json
from paribus.errors import EXIT_FAILED, EXIT_OK, NotComparableError, Problem, SpecError

if TYPE_CHECKING:
    from paribus.analysis.formatting import Grid
    from paribus.analysis.gates import Gate, GateResult
    from paribus.analysis.runs import TrialSet


def compare_reports(
    baseline_path: str, path: str | None, gates: Sequence[Gate], shape: str, *, across: bool
) -> int | None:
    """Compare two benchmark reports or folders of them; return the exit code, or None if neither is a report."""
    from paribus.analysis.benchmark_reports import is_report, read_both_sides
    from paribus.analysis.compare_benchmarks import compare_benchmarks
    from paribus.analysis.gates import check_benchmarks

    if path is None:
        if is_report(Path(baseline_path)):
            raise usage("expected two benchmark reports, got one", f"`paribus compare {baseline_path} AFTER`")
        return None
    sides = read_both_sides(Path(baseline_path), Path(path))
    if sides is None:
        return None
    table = compare_benchmarks(*sides, across=across)
    results = check_benchmarks(gates, table)
    grid = table.grid()
    _show(shape, grid, table.to_json, "benchmarks", results)
    return EXIT_FAILED if any_tripped(results) else EXIT_OK


def print_table(
    shape: str,
    renderers: dict[str, Callable[[], Any]],
    grid: Callable[[], Grid],
    document: Callable[[], dict[str, Any]],
    name: str,
    results: Sequence[GateResult] = (),
) -> None:
    """Print a table in the requested format, and the results of the gates."""
    if shape == "json":
        out_json({**document(), **({"gates": [result.to_json() for result in results]} if results else {})})
    elif shape == "csv":
        from paribus.report.table_views import to_csv

        out(to_csv(grid().records).removesuffix("\n"))
    elif shape == "latex":
        from paribus.report.latex import latex

        out(latex(grid(), name).removesuffix("\n"))
    else:
        renderers[shape]()
    for line in (line for result in results for line in result.lines):
        note(line)


def any_tripped(results: Sequence[GateResult]) -> bool:
    return any(result.tripped for result in results)


def usage(message: str, valid: str) -> SpecError:
    return SpecError(Problem(code="usage", message=message, valid=valid))


_VALID = "two trials (folders or identities), two folders of trials, NAME@CODE of the store, or two benchmark reports"


def compare_sides(
    baseline_text: str,
    variant_text: str,
    store: Path,
    gates: Sequence[Gate],
    shape: str,
    *,
    metric: str,
    elsewhere: bool,
) -> int:
    """Compare two trials or two folders of trials; return the exit code."""
    from paribus.analysis.compare_runs import compare_runs, compare_trials
    from paribus.analysis.gates import check_table

    baseline_side, variant_side = (_side(text, store) for text in (baseline_text, variant_text))
    if baseline_side.is_single and variant_side.is_single:
        if gates:
            message = "two single trials have no interval, so no gate can fail"
            valid = "two folders of trials, with several seeds each"
            raise NotComparableError(Problem(code="no-interval", path="--fail-if", message=message, valid=valid))
        comparison = compare_trials(baseline_side, variant_side, elsewhere=elsewhere)
        _show(shape, comparison.grid(), comparison.to_json, "trials")
        return EXIT_OK
    table = compare_runs(baseline_side, variant_side, metric=metric, elsewhere=elsewhere)
    results = check_table(gates, table)
    _show(shape, table.grid(), table.to_json, "trials", results)
    return EXIT_OK if table.ok and not any_tripped(results) else EXIT_FAILED


def _side(text: str, store: Path) -> TrialSet:
    from paribus.analysis.runs import load_trial_set

    trials = load_trial_set(text, store)
    if trials is None:
        raise usage(f"expected a trial, a folder of trials or a benchmark report, got `{text}`", _VALID)
    return trials


def _show(
    shape: str, grid: Grid, document: Callable[[], dict[str, Any]], name: str, results: Sequence[GateResult] = ()
) -> None:
    from paribus.report.markdown import grid_markdown
    from paribus.report.terminal import show_grid

    renderers = {"text": lambda: show_grid(grid), "markdown": lambda: out(grid_markdown(grid))}
    print_table(shape, renderers, lambda: grid, document, name, results)
