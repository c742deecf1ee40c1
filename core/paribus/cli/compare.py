"""`paribus compare`: the verdicts of a study, or how two sets of trials, or two benchmark reports, differ."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from paribus.cli._compare_output import reports, shown, sides, tripped
from paribus.cli.console import STORE, Session, note, out
from paribus.errors import EXIT_FAILED, EXIT_OK

if TYPE_CHECKING:
    from paribus.analysis.table import Table
    from paribus.planning.api import PlannedStudy


@click.command("compare")
@click.argument("study")
@click.argument("other", required=False)
@click.option("--store", type=click.Path(path_type=Path), default=STORE, show_default=True)
@click.option("--accept-code", multiple=True, metavar="HASH", help="Take in records of this older code; it is said.")
@click.option("--metric", default="", metavar="NAME", help="Of two sets of trials: NAME, or NAME:higher.")
@click.option("--across-machines", is_flag=True, help="Compare what ran elsewhere or otherwise, under a warning.")
@click.option("--fail-if", "fail_if", multiple=True, metavar="GATE", help="End with 1 if `slower:5%` or `worse:0.01`.")
@click.option("--markdown", "shape", flag_value="markdown", help="The table for a README or a pull request.")
@click.option("--latex", "shape", flag_value="latex", help="The table for a paper (booktabs).")
@click.option("--csv", "shape", flag_value="csv", help="The rows for a spreadsheet.")
@click.option("--json", "shape", flag_value="json", help="Rows of variant, metric, n, difference, low, high, verdict.")
@click.option(
    "--results", type=click.Path(path_type=Path), metavar="FOLDER", help="Keep the table and a line a trial there."
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
    """Hold each variant of STUDY against its baseline: a verdict with an interval, or why there is none.

    Or hold OTHER against STUDY: two trials, two folders of trials (NAME@CODE: those of one code), or two reports of
    pytest-benchmark (files, or folders with one for each run).
    """
    from paribus.analysis.gates import check_study, parse_gates

    gates, shape = parse_gates(fail_if), shape or "text"
    ended = reports(study, other, gates, shape, across=across_machines)
    if ended is not None:
        return ended
    if other is not None:
        return sides(study, other, store, gates, shape, metric=metric, elsewhere=across_machines)
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
        _keep(session, study, planned, table, results)
    held = check_study(gates, table)
    ways = {"text": lambda: show_table(table), "markdown": lambda: out(markdown(table))}
    shown(shape, ways, lambda: study_grid(table), table.to_json, planned.name, held)
    return EXIT_OK if table.ok and not tripped(held) else EXIT_FAILED


def _keep(session: Session, study: str, planned: PlannedStudy, table: Table, results: Path) -> None:
    from paribus.report.results import leading_comment, write_results
    from paribus.studies.locate import locate_study

    about = leading_comment(locate_study(study, session.index())[0])
    note("written: " + ", ".join(map(str, write_results(planned, table, results, about))))
