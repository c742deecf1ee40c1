"""`paribus compare`: verdicts of a study, or differences of two sets of trials or two benchmark reports."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeAlias, TypeVar

import click

from paribus.cli.console import Session, note, out, out_json, store_option
from paribus.errors import EXIT_FAILED, EXIT_OK, NotComparableError, Problem, SpecError

if TYPE_CHECKING:
    from paribus.analysis.formatting import Grid
    from paribus.analysis.gates import Gate, GateResult
    from paribus.analysis.runs import TrialSet
    from paribus.analysis.table import Table
    from paribus.planning.api import PlannedStudy

_VALID: Final = (
    "two trials (folders or identities), two folders of trials, NAME@CODE of the store, or two benchmark reports"
)
# What each of these options applies to; with anything else it would be ignored.
_APPLIES_TO: Final = {
    "--results": ("a study",),
    "--metric": ("two folders of trials",),
    "--across-machines": ("two trials", "two folders of trials", "two benchmark reports"),
    "--strict": ("a study", "two trials", "two folders of trials"),
}

_FORMAT: Final = "paribus.format"  # key of the context

Columns: TypeAlias = tuple[str, ...] | None
_Command = TypeVar("_Command", bound=Callable[..., Any])


def _column_names(context: click.Context, parameter: click.Parameter, text: str | None) -> Columns:
    """Return the names that commas separate; None without the option."""
    return None if text is None else tuple(name.strip() for name in text.split(",") if name.strip())


def _choose_format(context: click.Context, parameter: click.Parameter, is_chosen: bool) -> None:
    """Remember the format; two of them are an error."""
    if is_chosen:
        other = context.meta.setdefault(_FORMAT, parameter.name)
        if other != parameter.name:
            raise _usage_error(f"--{other} and --{parameter.name} are two formats", "one of them")


def _format_option(name: str, text: str) -> Callable[[_Command], _Command]:
    return click.option(f"--{name}", is_flag=True, expose_value=False, callback=_choose_format, help=text)


@click.command("compare")
@click.argument("study")
@click.argument("other", required=False)
@store_option
@click.option(
    "--metric",
    default="",
    metavar="NAME",
    help="Metric for two sets of trials: NAME, or NAME:higher if higher is better.",
)
@click.option(
    "--across-machines",
    "machines",
    flag_value="any",
    help="Also compare runs of different machines or settings, with a warning.",
)
@click.option(
    "--strict",
    "machines",
    flag_value="same",
    help="Refuse pairs of two processor models or numbers of threads, which are marked otherwise.",
)
@click.option(
    "--fail-if",
    "fail_if",
    multiple=True,
    metavar="GATE",
    help="Exit with 1 if a variant is slower or worse than a limit: slower:5%, worse:0.01.",
)
@_format_option("markdown", "Print Markdown, for a README or a pull request.")
@_format_option("latex", "Print LaTeX with booktabs, for a paper.")
@_format_option("csv", "Print CSV, for a spreadsheet.")
@_format_option("json", "Print JSON rows of variant, metric, n, difference, low, high, verdict.")
@click.option(
    "--columns",
    callback=_column_names,
    metavar="NAMES",
    help="Columns of the table, Markdown, LaTeX or CSV, in order: variant,n,difference,verdict,parameters.",
)
@click.option(
    "--results",
    type=click.Path(path_type=Path),
    metavar="FOLDER",
    help="Write the table and the metrics of each trial to FOLDER.",
)
@click.pass_obj
def verb(
    session: Session,
    study: str,
    other: str | None,
    store: Path,
    metric: str,
    machines: str | None,
    fail_if: tuple[str, ...],
    columns: Columns,
    results: Path | None,
) -> int:
    """Print the verdict of each variant of a study.

    `paribus compare quickstart`

    STUDY is the name of an installed study or a path. Each verdict has an interval, or a reason why it is withheld.

    With OTHER, compare two trials, two folders of trials (NAME@CODE selects one code), or two reports of
    pytest-benchmark (files, or folders with a file for each run).
    """
    from paribus.analysis.gates import check_study, parse_gates

    gates, shape = parse_gates(fail_if), click.get_current_context().meta.get(_FORMAT, "text")
    given = {
        "--results": results is not None,
        "--metric": bool(metric),
        "--across-machines": machines == "any",
        "--strict": machines == "same",
    }
    refuse_unused = partial(_refuse_unused, [option for option, is_given in given.items() if is_given])
    if shape == "json" and columns is not None:
        raise _usage_error("--json has all columns", "--columns with --markdown, --latex, --csv or none of them")
    ended = _compare_reports(study, other, gates, shape, columns, refuse_unused, across=machines == "any")
    if ended is not None:
        return ended
    if other is not None:
        return _compare_sides(
            study, other, store, gates, shape, columns, refuse_unused, metric=metric, machines=machines
        )
    refuse_unused("a study")
    from paribus.analysis.api import compare
    from paribus.planning.api import study as planned_of
    from paribus.report.markdown import markdown
    from paribus.report.table_views import study_grid
    from paribus.report.terminal import show_table

    planned = planned_of(study, registry=session.index(), store=store)
    table = compare(planned, strict=machines == "same")
    for line in (*planned.store.messages, *(f"warning: {warning}" for warning in planned.warnings())):
        note(line)
    if results is not None:
        _write_results(session, study, planned, table, results)
    gate_results = check_study(gates, table)
    renderers = {
        "text": lambda: show_table(table, columns=columns),
        "markdown": lambda: out(markdown(table, columns=columns)),
    }
    grid = partial(study_grid, table, columns if shape == "latex" else None)  # CSV chooses among numbers
    _print_table(shape, renderers, grid, table.to_json, planned.name, columns, gate_results)
    return EXIT_OK if table.ok and not _any_tripped(gate_results) else EXIT_FAILED


def _refuse_unused(given: Sequence[str], compared: str) -> None:
    """Raise an error for the first option that has no effect on what is compared."""
    for option in given:
        if compared not in _APPLIES_TO[option]:
            valid = f"{option} with {' or '.join(_APPLIES_TO[option])}"
            raise _usage_error(f"{option} has no effect on {compared}", valid)


def _write_results(session: Session, study: str, planned: PlannedStudy, table: Table, results: Path) -> None:
    from paribus.report.markdown import leading_comment, write_results
    from paribus.studies.study import locate_study

    about = leading_comment(locate_study(study, session.index())[0])
    note("written: " + ", ".join(map(str, write_results(planned, table, results, about))))


def _compare_reports(
    baseline_path: str,
    path: str | None,
    gates: Sequence[Gate],
    shape: str,
    columns: Columns,
    refuse_unused: Callable[[str], None],
    *,
    across: bool,
) -> int | None:
    """Compare two benchmark reports or folders of them; return the exit code, or None if neither is a report."""
    from paribus.analysis.benchmark_reports import is_report, read_both_sides
    from paribus.analysis.compare_benchmarks import compare_benchmarks
    from paribus.analysis.gates import check_benchmarks

    if path is None:
        if is_report(Path(baseline_path)):
            raise _usage_error("expected two benchmark reports, got one", f"`paribus compare {baseline_path} AFTER`")
        return None
    sides = read_both_sides(Path(baseline_path), Path(path))
    if sides is None:
        return None
    refuse_unused("two benchmark reports")
    table = compare_benchmarks(*sides, across=across)
    results = check_benchmarks(gates, table)
    _print_grid(shape, table.grid(), table.to_json, "benchmarks", columns, results)
    return EXIT_FAILED if _any_tripped(results) else EXIT_OK


def _print_table(
    shape: str,
    renderers: dict[str, Callable[[], Any]],
    grid: Callable[[], Grid],
    document: Callable[[], dict[str, Any]],
    name: str,
    columns: Columns,
    results: Sequence[GateResult] = (),
) -> None:
    """Print a table in the requested format, and the results of the gates."""
    if shape == "json":
        out_json({**document(), **({"gates": [result.to_json() for result in results]} if results else {})})
    elif shape == "csv":
        from paribus.report.table_views import to_csv

        out(to_csv(grid().records, columns).removesuffix("\n"))
    elif shape == "latex":
        from paribus.report.latex import latex

        out(latex(grid(), name).removesuffix("\n"))
    else:
        renderers[shape]()
    for line in (line for result in results for line in result.lines):
        note(line)


def _any_tripped(results: Sequence[GateResult]) -> bool:
    return any(result.tripped for result in results)


def _usage_error(message: str, valid: str) -> SpecError:
    return SpecError(Problem(code="usage", message=message, valid=valid))


def _compare_sides(
    baseline_text: str,
    variant_text: str,
    store: Path,
    gates: Sequence[Gate],
    shape: str,
    columns: Columns,
    refuse_unused: Callable[[str], None],
    *,
    metric: str,
    machines: str | None,
) -> int:
    """Compare two trials or two folders of trials; return the exit code."""
    across, strict = machines == "any", machines == "same"
    from paribus.analysis.compare_runs import compare_runs, compare_trials
    from paribus.analysis.gates import check_table

    baseline_side, variant_side = (_side(text, store) for text in (baseline_text, variant_text))
    is_one_pair = baseline_side.is_single and variant_side.is_single
    refuse_unused("two trials" if is_one_pair else "two folders of trials")
    if is_one_pair:
        if gates:
            message = "two single trials have no interval, so no gate can fail"
            valid = "two folders of trials, with several seeds each"
            raise NotComparableError(Problem(code="missing-interval", path="--fail-if", message=message, valid=valid))
        comparison = compare_trials(baseline_side, variant_side, across=across, strict=strict)
        _print_grid(shape, comparison.grid(), comparison.to_json, "trials", columns)
        return EXIT_OK
    table = compare_runs(baseline_side, variant_side, metric=metric, across=across, strict=strict)
    results = check_table(gates, table)
    _print_grid(shape, table.grid(), table.to_json, "trials", columns, results)
    return EXIT_OK if table.ok and not _any_tripped(results) else EXIT_FAILED


def _side(text: str, store: Path) -> TrialSet:
    from paribus.analysis.runs import load_trial_set

    trials = load_trial_set(text, store)
    if trials is None:
        raise _usage_error(f"expected a trial, a folder of trials or a benchmark report, got `{text}`", _VALID)
    return trials


def _print_grid(
    shape: str,
    grid: Grid,
    document: Callable[[], dict[str, Any]],
    name: str,
    columns: Columns,
    results: Sequence[GateResult] = (),
) -> None:
    from paribus.report.markdown import grid_markdown
    from paribus.report.terminal import show_grid

    chosen = grid if shape == "csv" else grid.select(columns)
    renderers = {"text": lambda: show_grid(chosen), "markdown": lambda: out(grid_markdown(chosen))}
    _print_table(shape, renderers, lambda: chosen, document, name, columns, results)
