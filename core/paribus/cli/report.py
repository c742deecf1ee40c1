"""`paribus report`: write a study as one HTML page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from paribus.cli.console import Session, note, out, refuse_other_file, store_option
from paribus.errors import EXIT_FAILED, EXIT_OK, Problem, SpecError

if TYPE_CHECKING:
    from paribus.analysis.trials import TrialEntry
    from paribus.planning.api import PlannedStudy
    from paribus.report.attention_section import AttentionSection


@click.command("report")
@click.argument("study")
@click.option("-o", "--output", type=click.Path(path_type=Path), help="HTML file; default: STUDY.html.")
@click.option(
    "--figures",
    type=click.Path(path_type=Path),
    metavar="FOLDER",
    help="Also write every chart to FOLDER, as SVG, PDF and PNG, as wide as a column of a paper.",
)
@click.option(
    "--attend", metavar="TEXT", help="Also show the attention maps of a trained model of each variant for this text."
)
@store_option
@click.pass_obj
def verb(
    session: Session,
    study: str,
    output: Path | None,
    figures: Path | None,
    attend: str | None,
    store: Path,
) -> int:
    """Write the results of a study to one HTML page.

    `paribus report quickstart`

    STUDY is the name of an installed study or a path. The page has the answer for each variant, intervals, learning
    curves, costs, fairness certificates and all trials, and opens without a network.
    """
    from paribus.analysis.api import compare, entries_by_setting, table_trials
    from paribus.report.html import html_page
    from paribus.report.provenance import git_commit
    from paribus.storage.atomic import write_bytes

    planned = session.study(study, store=store)
    path = output or Path(f"{planned.name}.html")
    refuse_other_file(path, "report")
    table = compare(planned)
    for line in planned.store.messages:
        note(line)
    trials = table_trials(planned)
    questions = {comparison.setting: comparison for _, comparison in entries_by_setting(planned)}
    section = _attention(session, attend, planned, trials)
    text = html_page(table, trials, questions, git_commit(), section)
    write_bytes(path, text.encode())
    out(f"written: {path}")
    if figures is not None:
        from paribus.report.figure_files import FORMATS, write_figures
        from paribus.report.figures import study_figures

        extra = [("", figure) for figure in section.figures] if section is not None else []
        paths = write_figures([*study_figures(table, trials, questions), *extra], figures)
        kinds = ", ".join(kind.upper() for kind in FORMATS)
        out(f"written: {len(paths) // len(FORMATS)} figures in {figures}, each as {kinds}")
    return EXIT_OK if table.ok else EXIT_FAILED


def _attention(
    session: Session, text: str | None, planned: PlannedStudy, trials: Mapping[str, Sequence[TrialEntry]]
) -> AttentionSection | None:
    if text is None:
        return None
    if not text.strip():
        raise SpecError(
            Problem(code="usage", path="--attend", message="the text is empty", valid="a text of a few words")
        )
    from paribus.report.attention_section import attention_section

    return attention_section(text, trials, planned.store, session.registry())
