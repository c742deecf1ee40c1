"""`paribus compare`: verdicts of a study, or differences of two sets of trials or two benchmark reports."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from paribus.cli._compare_output import any_tripped, compare_reports, compare_sides, print_table
from paribus.cli.console import STORE, Session, note, out
from paribus.errors import EXIT_FAILED, EXIT_OK

if TYPE_CHECKING:
    from paribus.analysis.table import Table
    from paribus.planning.api import PlannedStudy


@click.command("compare")
@click.argument("study")
@click.argument("other", required=False)
@click.option("--store", type=click.Path(path_type=Path), default=STORE, show_default=True)
@click.option(
    "--accept-code", multiple=True, metavar="HASH", help="Also use records of this older code; the table says so."
)
@click.option("--metric", default="", metavar="NAME", help="Metric of two sets of trials: NAME, or NAME:higher.")
@click.option("--across-machines", is_flag=True, help="Compare runs of different machines or settings, with a warning.")
@click.option("--fail-if", "fail_if", multiple=True, metavar="GATE", help="Exit with 1 if `slower:5%` or `worse:0.01`.")
@click.option("--markdown", "shape", flag_value="markdown", help="Markdown, for a README or a pull request.")
@click.option("--latex", "shape", flag_value="latex", help="LaTeX with booktabs, for a paper.")
@click.option("--csv", "shape", flag_value="csv", help="CSV, for a spreadsheet.")
@click.option(
    "--json", "shape", flag_value="json", help="JSON rows of variant, metric, n, difference, low, high, verdict."
)
@click.option(
    "--results",
    type=click.Path(path_type=Path),
    metavar="FOLDER",
    help="Write the table, and one line for each trial, to FOLDER.",
)
@click.pass_obj
def verb(
    session: Session,
    study: str,
    other: str | None,
    store: Path,
    accept_code: tuple[str, ...],
    metric: str,
    across_machines: bool,
    fail_if: tuple[str, ...],
    shape: str | None,
    results: Path | None,
) -> int:
    """Compare each variant of STUDY with its baseline: a verdict with an interval, or the reason for none.

    With OTHER, compare two trials, two folders of trials (NAME@CODE selects one code), or two reports of
    pytest-benchmark (files, or folders with a file for each run).
    """
    from paribus.analysis.gates import check_study, parse_gates

    gates, shape = parse_gates(fail_if), shape or "text"
    ended = compare_reports(study, other, gates, shape, across=across_machines)
    if ended is not None:
        return ended
    if other is not None:
        return compare_sides(study, other, store, gates, shape, metric=metric, elsewhere=across_machines)
    from paribus.analysis.api import compare
    from paribus.planning.api import study as planned_of
    from paribus.report.markdown import markdown
    from paribus.report.table_views import study_grid
    from paribus.report.terminal import show_table

    planned = planned_of(study, registry=session.index(), store=store)
    table = compare(planned, accept_code=accept_code)
    for line in planned.store.messages:
        note(line)
    if results is not None:
        _write_results(session, study, planned, table, results)
    gate_results = check_study(gates, table)
    renderers = {"text": lambda: show_table(table), "markdown": lambda: out(markdown(table))}
    print_table(shape, renderers, lambda: study_grid(table), table.to_json, planned.name, gate_results)
    return EXIT_OK if table.ok and not any_tripped(gate_results) else EXIT_FAILED


def _write_results(session: Session, study: str, planned: PlannedStudy, table: Table, results: Path) -> None:
    from paribus.report.markdown import leading_comment, write_results
    from paribus.studies.locate import locate_study

    about = leading_comment(locate_study(study, session.index())[0])
    note("written: " + ", ".join(map(str, write_results(planned, table, results, about))))
