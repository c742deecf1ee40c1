"""`paribus compare-benchmarks`: changes of speed between two benchmark reports."""

from __future__ import annotations

from pathlib import Path

import click

from paribus.cli._comparison import Output, across_machines_option, output_options


@click.command("compare-benchmarks")
@click.argument("baseline", metavar="BEFORE", type=click.Path(path_type=Path))
@click.argument("candidate", metavar="AFTER", type=click.Path(path_type=Path))
@across_machines_option
@output_options
def verb(baseline: Path, candidate: Path, across: bool, output: Output) -> int:
    """Print the change of speed of each benchmark between two reports of pytest-benchmark.

    `paribus compare-benchmarks before.json after.json --fail-if slower:5%`

    BEFORE and AFTER are files that `pytest --benchmark-json=FILE` wrote, or folders with such a file for each run.
    """
    from paribus.analysis.benchmark_reports import read_reports
    from paribus.analysis.compare_benchmarks import compare_benchmarks
    from paribus.analysis.gates import check_benchmarks

    table = compare_benchmarks(read_reports(baseline), read_reports(candidate), across=across)
    return output.print_grid(table.grid(), table.to_json(), "benchmarks", check_benchmarks(output.gates, table))
