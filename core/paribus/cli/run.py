"""`paribus run`: every trial of a study that has no record yet, then the verdict."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from paribus.analysis.formatting import compact
from paribus.cli._progress import StudyProgress, duration
from paribus.cli.console import STORE, Session, note, out, out_json, table
from paribus.errors import EXIT_FAILED, EXIT_OK

if TYPE_CHECKING:
    from paribus.analysis.table import Table
    from paribus.planning.api import PlannedStudy
    from paribus.planning.estimate import Row


MAX_TRIALS: Final = 10_000
PLAN_COLUMNS: Final = (
    "setting", "variant", "stage", "trials", "left", "parameters", "FLOPs/token", "train FLOPs", "cache/token",
    "memory", "s/trial", "matched",
)  # fmt: skip


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
        return _show_plan(planned, session, jobs, as_json)
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

    verdicts = compare(planned)
    if as_json:
        out_json(verdicts.to_json())
    else:
        show_table(verdicts)
        out()
        out(f"records: {planned.store.root}")
        out(f"next: {next_commands}{_fresh_seeds(verdicts)}")
    return EXIT_OK if verdicts.ok else EXIT_FAILED


def _fresh_seeds(verdicts: Table) -> str:
    """Return the suggestion of fresh seeds that would settle an inconclusive verdict."""
    needs = max(
        (row.needs for table_setting in verdicts.settings for row in table_setting.rows if row.needs is not None),
        default=0,
    )
    first_seed = max(verdicts.seeds) + 1
    return (
        f" · to settle it: a study of ~{needs} fresh seeds, `seeds: [{first_seed}, {first_seed + 1}, …]`"
        if needs
        else ""
    )


def _show_plan(planned: PlannedStudy, session: Session, jobs: int, as_json: bool) -> int:
    """Print the plan of a study, with the cost that a few steps of each variant estimate; write no record."""
    from paribus.planning.estimate import estimate
    from paribus.planning.tuning import pending_notes
    from paribus.runner.match_time import earlier_measurements, unsolved_matches
    from paribus.studies.designs import describe_design

    states = {trial.identity: planned.store.state(trial.identity) for trial in planned.plan.trials}
    registry = session.registry()
    loading_seconds = time.process_time()  # the fork server loads it once, too
    rows = estimate(planned.plan, registry, states)
    pending = sum(row.pending for row in rows)
    unknown = [*unsolved_matches(planned), *pending_notes(planned.plan.tuned)]
    seconds = loading_seconds + sum(row.seconds for row in rows) / jobs if pending else 0.0
    if as_json:
        excluded = [{"variant": exclusion.variant, "reason": exclusion.reason} for exclusion in planned.plan.excluded]
        variants = [_row_json(row) for row in rows]
        document = {"variants": variants, "excluded": excluded, "loading_seconds": loading_seconds, "seconds": seconds}
        out_json({**document, **({"not_known": unknown} if unknown else {}), "jobs": jobs})
        return EXIT_OK
    for line in table(_without_empty_columns([PLAN_COLUMNS, *map(_cells, rows)])):
        out(line)
    for exclusion in planned.plan.excluded:
        out(f"excluded: {exclusion.variant}: {exclusion.reason}")
    if description := describe_design(planned.plan.study.design, planned.plan.study.varied):
        out(description)
    out()
    for line in (*dict.fromkeys(earlier_measurements(planned)), *unknown):
        out(line)
    out(f"the study is called {planned.name}; its records would be in {planned.store.root}")
    out(f"{pending} of {len(planned.plan.trials)} trials would run, {jobs} at a time: about {duration(seconds)},")
    out("with starting and evaluating, from five steps of each variant that were timed now on one thread; memory is")
    out("the most that this process held meanwhile; nothing was run or written")
    return EXIT_OK


def _row_json(row: Row) -> dict[str, Any]:
    values = {key: value for key, value in row._asdict().items() if key not in ("stage", "setting") or value}
    document = {**values, "seconds_per_trial": row.seconds_per_trial}
    return {
        key: None if isinstance(value, float) and not math.isfinite(value) else value for key, value in document.items()
    }


def _cells(row: Row) -> tuple[str, ...]:
    return (
        row.setting,
        row.variant,
        row.stage,
        str(row.trials),
        str(row.pending),
        f"{row.parameters:,}",
        f"{row.flops_per_token:,.0f}",
        "?" if math.isnan(row.training_flops) else compact(row.training_flops, 1000, " kMGTPEZ"),
        compact(row.cache_bytes_per_token, 1024, "BKMGT") if row.cache_bytes_per_token else "-",
        compact(row.peak_bytes, 1024, "BKMGT"),
        f"{row.seconds_per_trial:.1f}",
        row.matched,
    )


def _without_empty_columns(cells: Sequence[tuple[str, ...]]) -> list[tuple[str, ...]]:
    """Return the cells without optional columns that are empty."""
    empty = {index for index in (0, 2, 8, 11) if all(row[index] in ("", "-") for row in cells[1:])}
    columns = [index for index, _ in enumerate(cells[0]) if index not in empty]
    return [tuple(row[index] for index in columns) for row in cells]
