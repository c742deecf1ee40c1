"""`paribus compare`: verdicts of a study."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import click

from paribus.cli._comparison import Output, notes_option, output_options, strict_option, usage_error
from paribus.cli.console import Session, note, out, store_option


@click.command("compare")
@click.argument("study")
@store_option
@strict_option
@output_options
@click.option(
    "--results",
    type=click.Path(path_type=Path),
    metavar="FOLDER",
    help="Write the table and the metrics of each trial to FOLDER.",
)
@notes_option
@click.pass_obj
def verb(
    session: Session, study: str, store: Path, strict: bool, output: Output, results: Path | None, with_notes: bool
) -> int:
    """Print the verdict of each variant of a study.

    `paribus compare quickstart`

    STUDY is the name of an installed study or a path. Each verdict has an interval, or a reason why it is withheld.
    `compare-values` compares numbers in a file, `compare-trials` two sets of trials, and `compare-benchmarks` two
    benchmark reports.
    """
    from paribus.analysis.api import compare
    from paribus.analysis.gates import check_study
    from paribus.report.markdown import leading_comment, markdown, write_results
    from paribus.report.table_views import study_grid
    from paribus.report.terminal import show_table
    from paribus.studies.study import locate_study

    if Path(study).suffix in (".csv", ".tsv", ".jsonl"):
        raise usage_error(f"`{study}` is a table of numbers, and no study", f"paribus compare-values {study}")
    planned = session.study(study, store=store)
    table = compare(planned, strict=strict)
    for line in (*planned.store.messages, *(f"warning: {warning}" for warning in planned.warnings())):
        note(line)
    if results is not None:
        about = leading_comment(locate_study(study, session.index())[0])
        note("written: " + ", ".join(map(str, write_results(planned, table, results, about))))
    printers = {
        "text": lambda: show_table(table, columns=output.columns, with_notes=with_notes),
        "markdown": lambda: out(markdown(table, columns=output.columns)),
    }
    grid = partial(study_grid, table, output.columns if output.format == "latex" else None)  # CSV chooses among numbers
    gate_results = check_study(output.gates, table)
    return output.print_table(printers, grid, table.to_json(), planned.name, gate_results, ok=table.ok)
