"""`paribus compare-values`: verdicts of numbers that exist already."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from paribus.analysis.verdicts import Better
from paribus.cli._comparison import Output, notes_option, output_options
from paribus.cli.console import note, out, refuse_other_file

if TYPE_CHECKING:
    from paribus.analysis.table import Table


@click.command("compare-values")
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--metric", default="", metavar="COLUMN", help="Column of the metric; default: `value`, or the only one.")
@click.option("--baseline", default="", metavar="VARIANT", help="Default: `baseline`, or the first variant.")
@click.option(
    "--better",
    type=click.Choice(["lower", "higher"]),
    help="Better values; default: lower, and required for a name such as accuracy.",
)
@click.option("--margin", type=float, help="Difference that is negligible; default: none.")
@click.option("--open-ended", is_flag=True, help="Verdicts hold at every number of seeds, so seeds may be added.")
@click.option(
    "-o",
    "--output",
    "page",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Also write an HTML page with charts.",
)
@notes_option
@output_options
def verb(
    file: Path,
    metric: str,
    baseline: str,
    better: Better | None,
    margin: float | None,
    open_ended: bool,
    page: Path | None,
    output: Output,
    with_notes: bool,
) -> int:
    """Print the verdict of each variant in a table of numbers, whatever program they come from.

    `paribus compare-values results.csv --margin 0.01`

    FILE is CSV, TSV or JSON lines, with a row for each variant and seed: the columns `variant`, `seed`, and a metric. A
    value of nan is a diverged trial. Fairness is not certified: numbers do not show it.
    """
    from paribus.analysis.compare_values import compare_values
    from paribus.analysis.gates import check_study
    from paribus.report.markdown import markdown
    from paribus.report.table_views import study_grid
    from paribus.report.terminal import show_table

    table = compare_values(file, metric=metric, baseline=baseline, better=better, margin=margin, open_ended=open_ended)
    if page is not None:
        _write_page(table, page)
    printers = {
        "text": lambda: show_table(table, columns=output.columns, with_notes=with_notes, source="`--notes`"),
        "markdown": lambda: out(markdown(table, columns=output.columns)),
    }
    grid = partial(study_grid, table, output.columns if output.format == "latex" else None)
    results = check_study(output.gates, table)
    return output.print_table(printers, grid, table.to_json(), table.study, results, ok=table.ok)


def _write_page(table: Table, path: Path) -> None:
    from paribus.report.html import values_page
    from paribus.storage.atomic import write_bytes

    refuse_other_file(path, "compare-values")
    write_bytes(path, values_page(table).encode())
    note(f"written: {path}")
