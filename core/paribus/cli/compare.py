"""`paribus compare`: the verdicts of a study, from the records that it has."""

from __future__ import annotations

from pathlib import Path

import click

from paribus.cli.console import STORE, Session, note, out, out_json
from paribus.errors import EXIT_FAILED, EXIT_OK


@click.command("compare")
@click.argument("study")
@click.option("--store", type=click.Path(path_type=Path), default=STORE, show_default=True)
@click.option("--accept-code", multiple=True, metavar="HASH", help="Take in records of this older code; it is said.")
@click.option("--markdown", is_flag=True, help="The table for a README or a pull request.")
@click.option("--json", "as_json", is_flag=True, help="Rows of variant, metric, n, difference, low, high, verdict.")
@click.option(
    "--results", type=click.Path(path_type=Path), metavar="FOLDER", help="Keep the table and a line a trial there."
)
@click.pass_obj
def verb(
    session: Session,
    study: str,
    store: Path,
    accept_code: tuple[str, ...],
    markdown: bool,
    as_json: bool,
    results: Path | None,
) -> int:
    """Hold each variant of STUDY against its baseline: a verdict with an interval, or why there is none."""
    from paribus.report.door import compare
    from paribus.report.markdown import markdown as as_markdown
    from paribus.report.terminal import show
    from paribus.studies.planned import study as planned_of

    planned = planned_of(study, registry=session.index(), store=store)
    table = compare(planned, accept_code=accept_code)
    for line in planned.store.notes:
        note(line)
    if results is not None:
        from paribus.report.results import keep, opening
        from paribus.studies.shipped import study_file

        about = opening(study_file(study, session.index())[0])
        note("written: " + ", ".join(map(str, keep(planned, table, results, about))))
    if as_json:
        out_json(table.to_json())
    elif markdown:
        out(as_markdown(table))
    else:
        show(table)
    return EXIT_OK if table.ok else EXIT_FAILED
