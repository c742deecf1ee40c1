"""`paribus run`: run the trials of a study that have no record yet, and print the verdicts or the plan."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from paribus.analysis.formatting import compact
from paribus.cli.console import Session, memory_warning, note, out, out_versioned, store_option, table, wrapped
from paribus.errors import EXIT_FAILED, EXIT_OK
from paribus.evidence.property_names import withholds_verdict
from paribus.runner.progress_bar import StudyProgress, duration

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
@click.option(
    "--plan", "only_plan", is_flag=True, help="Print the trials that would run and the estimated time, and run nothing."
)
@click.option(
    "--jobs",
    type=click.IntRange(1),
    default=None,
    help="Number of concurrent trials; default: that of the launcher, one for each core or GPU.",
)
@store_option
@click.option(
    "--max-trials", type=click.IntRange(1), default=MAX_TRIALS, show_default=True, help="Refuse larger studies."
)
@click.option(
    "--timing/--no-timing",
    default=None,
    help="Time the training steps of all variants in turns after the study; default: if that takes little time. "
    "A plan without timing has costs only.",
)
@click.option(
    "--repeat/--no-repeat",
    default=True,
    help="Run one trial of a program again after the study, to see whether it has the same values.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the verdicts, or the plan, as JSON.")
@click.pass_obj
def verb(
    session: Session,
    study: str,
    only_plan: bool,
    jobs: int | None,
    store: Path,
    max_trials: int,
    timing: bool | None,
    repeat: bool,
    as_json: bool,
) -> int:
    """Run the trials of a study, and print its verdicts.

    `paribus run quickstart`

    STUDY is the name of an installed study or a path. Trials that have a record are not run again, and interrupted ones
    resume from their checkpoints.
    """
    from paribus.analysis.api import pending_trials, trial_to_repeat
    from paribus.api import run
    from paribus.runner.jobs import default_jobs
    from paribus.runner.match_time import earlier_measurements
    from paribus.runner.replay import stale_notes
    from paribus.runner.timing import timing_plan
    from paribus.slots.launcher import Plugins

    options = [] if jobs is None else ["--jobs", str(jobs)]
    options += [] if max_trials == MAX_TRIALS else ["--max-trials", str(max_trials)]
    options += [] if repeat else ["--no-repeat"]
    registry = session.registry() if only_plan else None
    planned = session.study(study, registry=registry, store=store, max_trials=max_trials, read_only=only_plan)
    jobs = jobs or default_jobs(planned)
    if only_plan and planned.plan.study.program is not None:
        return _show_commands(planned, jobs, as_json)
    if only_plan:
        return _show_plan(planned, session, jobs, as_json, timed=timing is not False)
    pending = pending_trials(planned)
    for line in dict.fromkeys(earlier_measurements(planned)):
        note(line)
    if pending:
        for line in stale_notes(planned, session.command("verify", study, store=store)):
            note(line)
    for excluded in planned.plan.excluded:
        note(f"excluded: {excluded.variant}: {excluded.reason}")
    is_repeated = not repeat or trial_to_repeat(planned) is None
    if not pending and planned.plan.is_complete and is_repeated:
        note("nothing to run: every trial has a record or is not needed")
    if pending or not planned.plan.is_complete or not is_repeated or (timing and timing_plan(planned, requested=True)):
        resume_command = session.command("run", study, *options, store=store)
        plugins = Plugins(tuple(map(str, session.plugins)), none=session.no_plugins)
        with StudyProgress(planned, pending, jobs) as progress:
            planned = run(
                planned,
                jobs=jobs,
                plugins=plugins,
                resume=resume_command,
                on_event=progress.on_event,
                timing=timing,
                repeat=repeat,
            )
    next_commands = (session.command(verb, study, store=store) for verb in ("compare", "status"))
    return _verdict(planned, " · ".join(next_commands), as_json)


def _verdict(planned: PlannedStudy, next_commands: str, as_json: bool) -> int:
    from paribus.analysis.api import compare
    from paribus.report.terminal import show_table

    verdicts = compare(planned)
    if as_json:
        out_versioned(verdicts.to_json())
    else:
        show_table(verdicts)
        out()
        out(f"records: {planned.store.root}")
        for line in wrapped(f"next: {next_commands}{_fresh_seeds(verdicts)}"):
            out(line)
    return EXIT_OK if verdicts.ok else EXIT_FAILED


def _fresh_seeds(verdicts: Table) -> str:
    """Return the number of seeds that an inconclusive verdict needs, as a suggestion."""
    needs = max(
        (row.needs for table_setting in verdicts.settings for row in table_setting.rows if row.needs is not None),
        default=0,
    )
    if not needs:
        return ""
    if verdicts.open_ended:
        return f" · for a verdict: more seeds, `seeds: {needs}`"
    first_seed = max(verdicts.seeds) + 1
    return f" · for a verdict: a study with ~{needs} other seeds, `seeds: [{first_seed}, {first_seed + 1}, …]`"


def _show_plan(planned: PlannedStudy, session: Session, jobs: int, as_json: bool, *, timed: bool) -> int:
    """Print the plan of a study, with costs estimated from a few steps of each variant; write no record."""
    from paribus.planning.estimate import estimate
    from paribus.planning.tuning import pending_notes
    from paribus.runner.match_time import earlier_measurements, unsolved_matches
    from paribus.studies.designs import describe_design

    states = {trial.identity: planned.store.state(trial.identity) for trial in planned.plan.trials}
    registry = session.registry()
    loading_seconds = time.process_time()  # the fork server loads it once, too
    if timed:
        note("timing five steps of each variant; --no-timing omits it …")
    rows = estimate(planned.plan, registry, states, timed=timed)
    pending = sum(row.pending for row in rows)
    unknown = [*unsolved_matches(planned), *pending_notes(planned.plan.tuned)]
    seconds = loading_seconds + sum(row.seconds for row in rows if row.is_timed) / jobs if pending else 0.0
    untimed = [
        f"not timed: {', '.join(filter(None, (row.variant, row.setting, row.stage)))}: "
        f"{memory_warning(row.peak_bytes, row.free_bytes)}"
        for row in rows
        if row.free_bytes
    ]
    if as_json:
        excluded = [{"variant": exclusion.variant, "reason": exclusion.reason} for exclusion in planned.plan.excluded]
        variants = [_row_json(row) for row in rows]
        is_known = not pending or any(row.is_timed for row in rows if row.pending)
        document = {
            "variants": variants,
            "excluded": excluded,
            "loading_seconds": loading_seconds,
            "seconds": seconds if is_known else None,
        }
        unknown += untimed
        out_versioned({**document, **({"not_known": unknown} if unknown else {}), "jobs": jobs})
        return EXIT_OK
    for line in table(_without_empty_columns([PLAN_COLUMNS, *map(_cells, rows)])):
        out(line)
    for exclusion in planned.plan.excluded:
        out(f"excluded: {exclusion.variant}: {exclusion.reason}")
    if description := describe_design(planned.plan.study.design, planned.plan.study.varied):
        out(description)
    out()
    for line in (*dict.fromkeys(earlier_measurements(planned)), *unknown, *untimed, *_check_lines(rows)):
        out(line)
    out(f"study {planned.name}; records in {planned.store.root}")
    out(f"{pending} of {len(planned.plan.trials)} trials would run, {jobs} at a time: {_time_text(rows, seconds)}")
    measured = (
        "The time includes start and evaluation, and is estimated from five steps of each variant on one thread. "
        "Memory is the maximum of this process."
    )
    explanation = measured if timed else "No steps were timed. Memory is predicted, for the tensors of one step."
    for line in wrapped(f"{explanation} No trial was run, and no file was written."):
        out(line)
    return EXIT_OK


def _show_commands(planned: PlannedStudy, jobs: int, as_json: bool) -> int:
    """Print the plan of a study of a program: the command of each variant, with the first seed; write no record."""
    from paribus.program.command import command_of
    from paribus.storage.store import FINISHED

    plan, store = planned.plan, planned.store
    excluded = [{"variant": it.variant, "reason": it.reason} for it in plan.excluded]
    rows = []
    for setting in plan.settings:
        for variant in setting.variants:
            trials = plan.new_trials(variant.name, plan.study.metric.stage, setting.name)
            pending = sum(store.state(trial.identity) not in FINISHED for trial in trials)
            command = command_of(trials[0].spec).text if trials else ""
            name = {"setting": setting.name} if setting.name else {}
            rows.append(
                {**name, "variant": variant.name, "trials": len(trials), "pending": pending, "command": command}
            )
    pending = sum(store.state(trial.identity) not in FINISHED for trial in plan.trials)
    if as_json:
        out_versioned({"variants": rows, "excluded": excluded, "pending": pending, "jobs": jobs})
        return EXIT_OK
    heads = [key for key in ("setting", "variant", "trials", "pending", "command") if any(key in row for row in rows)]
    for line in table([tuple(heads), *(tuple(str(row.get(key, "")) for key in heads) for row in rows)]):
        out(line)
    for item in excluded:
        out(f"excluded: {item['variant']}: {item['reason']}")
    out()
    out(f"study {planned.name}; records in {store.root}")
    out(f"{pending} of {len(plan.trials)} trials would run, {jobs} at a time; their time is known after the first")
    return EXIT_OK


def _check_lines(rows: Sequence[Row]) -> Iterator[str]:
    """Yield the time of the checks of plugins, and what they find before any trial is run."""
    checked = [row for row in rows if row.check_seconds]
    if checked:
        seconds = max(row.check_seconds for row in checked)
        yield f"of each trial with a plugin, up to {seconds:.1f} s check what its components promise"
    for row in checked:
        for name, fault in row.faults.items():
            result = "; its verdict will be withheld" if withholds_verdict(name) else ""
            yield f"warning: {row.variant} {name}: {fault}{result}"


def _time_text(rows: Sequence[Row], seconds: float) -> str:
    """Return the estimated time; of a plan with variants that were not timed, that of the others."""
    if not any(row.is_timed for row in rows if row.pending) and any(row.pending for row in rows):
        return "the time is not known"
    rest = ", and the time of the variants that were not timed" if not all(row.is_timed for row in rows) else ""
    return f"about {duration(seconds)}{rest}"


def _row_json(row: Row) -> dict[str, Any]:
    values: dict[str, Any] = {
        key: value for key, value in row._asdict().items() if key not in ("stage", "setting", "free_bytes") or value
    }
    document = {**values, "faults": dict(row.faults), "seconds_per_trial": row.seconds_per_trial}
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
        "?" if math.isnan(row.seconds_per_trial) else f"{row.seconds_per_trial:.1f}",
        row.matched,
    )


def _without_empty_columns(cells: Sequence[tuple[str, ...]]) -> list[tuple[str, ...]]:
    """Return the cells without optional columns that are empty."""
    empty = {index for index in (0, 2, 8, 11) if all(row[index] in ("", "-") for row in cells[1:])}
    columns = [index for index, _ in enumerate(cells[0]) if index not in empty]
    return [tuple(row[index] for index in columns) for row in cells]
