"""`paribus compare-trials`: differences between two sets of trials, or between two trials."""

from __future__ import annotations

from pathlib import Path

import click

from paribus.cli._comparison import Output, across_machines_option, output_options, strict_option, usage_error
from paribus.cli.console import store_option
from paribus.errors import NotComparableError, Problem


@click.command("compare-trials")
@click.argument("baseline", metavar="BEFORE")
@click.argument("candidate", metavar="AFTER")
@store_option
@click.option(
    "--metric",
    default="",
    metavar="NAME",
    help="Metric that is compared: NAME, NAME:higher or NAME:lower; default: the loss.",
)
@across_machines_option
@strict_option
@output_options
def verb(baseline: str, candidate: str, store: Path, metric: str, across: bool, strict: bool, output: Output) -> int:
    """Print the differences between two sets of trials, such as two commits of a study.

    `paribus compare-trials attention@previous attention`

    BEFORE and AFTER are folders of trials, or studies of the store; NAME@CODE selects the records of one code. Two
    trials, by folder or identity, are compared in their specs and in every metric, without a verdict.
    """
    from paribus.analysis.compare_runs import compare_runs, compare_trials
    from paribus.analysis.gates import check_table
    from paribus.analysis.runs import load_trial_set

    if across and strict:
        raise usage_error("--across-machines and --strict contradict each other", "one of them")
    sides = [load_trial_set(text, store) for text in (baseline, candidate)]
    if sides[0] is None or sides[1] is None:
        message = f"expected a trial or a folder of trials, got `{baseline if sides[0] is None else candidate}`"
        raise usage_error(message, "two trials (folders or identities), two folders of trials, NAME@CODE of the store")
    if sides[0].is_single and sides[1].is_single:
        if output.gates or metric:
            path, reason = ("--fail-if", "have no interval") if output.gates else ("--metric", "show every metric")
            valid = "two folders of trials, with several seeds each"
            problem = Problem(code="missing-interval", path=path, message=f"two single trials {reason}", valid=valid)
            raise NotComparableError(problem)
        comparison = compare_trials(sides[0], sides[1], across=across, strict=strict)
        return output.print_grid(comparison.grid(), comparison.to_json(), "trials")
    table = compare_runs(sides[0], sides[1], metric=metric, across=across, strict=strict)
    return output.print_grid(table.grid(), table.to_json(), "trials", check_table(output.gates, table), ok=table.ok)
