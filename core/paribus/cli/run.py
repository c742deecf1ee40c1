"""`paribus run`: every trial of a study that has no record yet, then the verdict."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from paribus.cli._progress import StudyProgress
from paribus.cli.console import STORE, Session, note, out, out_json
from paribus.errors import EXIT_FAILED, EXIT_OK

if TYPE_CHECKING:
    from paribus.analysis.table import Table
    from paribus.planning.api import PlannedStudy


MAX_TRIALS: Final = 10_000


@click.command("run")
@click.argument("study")
@click.option("--plan", "only_plan", is_flag=True, help="Say what would run, and how long, and run nothing.")
@click.option(
    "--jobs",
    type=click.IntRange(1),
    default=None,
    help="Trials at a time; if not given, as the launcher has it: one for each core, or GPU.",
)
@click.option("--store", type=click.Path(path_type=Path), default=STORE, show_default=True)
@click.option("--max-trials", type=click.IntRange(1), default=MAX_TRIALS, show_default=True)
@click.option(
    "--timing/--no-timing",
    default=None,
    help="Time the steps of all variants afterwards, in turns; unless said, where that takes little beside the study.",
)
@click.option("--json", "as_json", is_flag=True, help="The verdicts, or the plan, as JSON.")
@click.pass_obj
def verb(
    session: Session,
    study: str,
    only_plan: bool,
    jobs: int | None,
    store: Path,
    max_trials: int,
    timing: bool | None,
    as_json: bool,
) -> int:
    """Run STUDY: the name of a shipped one, or a path. What has a record is not run again.

    `paribus run quickstart`
    """
    from paribus.analysis.api import skipped_trials
    from paribus.api import run
    from paribus.cli._planning import show_plan
    from paribus.planning.api import study as planned_of
    from paribus.runner.api import default_jobs
    from paribus.runner.match_time import earlier_measurements
    from paribus.runner.timing import timing_plan
    from paribus.slots.launcher import Plugins

    options = [] if jobs is None else ["--jobs", str(jobs)]
    options += [] if max_trials == MAX_TRIALS else ["--max-trials", str(max_trials)]
    registry = session.registry() if only_plan else None
    planned = planned_of(study, registry=registry or session.index(), store=store, max_trials=max_trials)
    jobs = jobs or default_jobs(planned)
    if only_plan:
        return show_plan(planned, session, jobs, as_json)
    skipped = skipped_trials(planned)
    pending = [
        trial
        for trial in planned.plan.trials
        if trial.identity not in skipped and planned.store.state(trial.identity) not in ("done", "diverged")
    ]
    for line in dict.fromkeys(earlier_measurements(planned)):
        note(line)
    for excluded in planned.plan.excluded:
        note(f"excluded: {excluded.variant}: {excluded.reason}")
    if not pending and planned.plan.is_complete:
        note("every trial has its record already, or is not needed: nothing to run")
    if pending or not planned.plan.is_complete or (timing and timing_plan(planned, asked=True)):
        resume_command = session.command("run", study, *options, store=store)
        plugins = Plugins(tuple(map(str, session.plugins)), none=session.no_plugins)
        with StudyProgress(planned, pending, jobs) as progress:
            planned = run(
                planned, jobs=jobs, plugins=plugins, resume=resume_command, on_event=progress.on_event, timing=timing
            )
    next_commands = (session.command(verb, study, store=store) for verb in ("compare", "status"))
    return _verdict(planned, " · ".join(next_commands), as_json)


def _verdict(planned: PlannedStudy, next_commands: str, as_json: bool) -> int:
    from paribus.analysis.api import compare
    from paribus.report.terminal import show_table

    table = compare(planned)
    if as_json:
        out_json(table.to_json())
    else:
        show_table(table)
        out()
        out(f"records: {planned.store.root}")
        out(f"next: {next_commands}{_fresh(table)}")
    return EXIT_OK if table.ok else EXIT_FAILED


def _fresh(table: Table) -> str:
    """Return the suggestion of fresh seeds that would settle an inconclusive verdict."""
    needs = max(
        (row.needs for table_setting in table.settings for row in table_setting.rows if row.needs is not None),
        default=0,
    )
    first_seed = max(table.seeds) + 1
    return (
        f" · to settle it: a study of ~{needs} fresh seeds, `seeds: [{first_seed}, {first_seed + 1}, …]`"
        if needs
        else ""
    )
