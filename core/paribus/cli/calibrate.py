"""`paribus calibrate`: noise between seeds, detectable effects, and the seeds that an effect needs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from paribus.cli.console import Session, note, out, out_versioned, store_option, wrapped
from paribus.errors import EXIT_OK, NotComparableError

if TYPE_CHECKING:
    from paribus.planning.api import PlannedStudy


@click.command("calibrate")
@click.argument("study")
@click.option(
    "--effect",
    type=click.FloatRange(0, min_open=True),
    default=None,
    help="Difference to detect; default: the study's margin.",
)
@click.option(
    "--power",
    type=click.FloatRange(0, 1, min_open=True, max_open=True),
    default=0.8,
    show_default=True,
    help="Probability of detecting the effect.",
)
@click.option(
    "--pilot", type=click.IntRange(2), default=None, metavar="K", help="Run the first K seeds of the study before."
)
@click.option("--jobs", type=click.IntRange(1), default=None, help="Number of concurrent trials of the pilot.")
@store_option
@click.option("--json", "as_json", is_flag=True, help="Print the estimates as JSON.")
@click.pass_obj
def verb(
    session: Session,
    study: str,
    effect: float | None,
    power: float,
    pilot: int | None,
    jobs: int | None,
    store: Path,
    as_json: bool,
) -> int:
    """Estimate the noise between seeds, and the seeds that an effect needs.

    `paribus calibrate quickstart --effect 0.02`

    STUDY is the name of an installed study or a path. The smallest effect that the seeds of the study can detect is
    printed too. `--pilot 5` runs the first 5 seeds first.
    """
    from paribus.analysis.calibrate import calibrate

    planned = session.study(study, store=store)
    if pilot is not None:
        options = ["--pilot", str(pilot), *([] if jobs is None else ["--jobs", str(jobs)])]
        _run(planned, session, pilot, jobs, session.command("calibrate", study, *options, store=store))
        planned = planned.replan()
    try:
        calibration = calibrate(planned, effect=effect, power=power)
    except NotComparableError as error:
        command = session.command("calibrate", study, "--pilot", "5", store=store)
        codes, valid = ("too-few", "no-records"), f"`{command}`, which runs the first 5 seeds"
        raise NotComparableError(
            *(replace(problem, valid=valid) if problem.code in codes else problem for problem in error.problems)
        ) from None
    for line in planned.store.messages:
        note(line)
    if as_json:
        out_versioned(calibration.to_json())
    else:
        out(calibration.title)
        for setting in calibration.settings:
            for line in ("", *([setting.setting, ""] if setting.setting else []), *setting.tables()):
                out(line)
            _print_wrapped(setting.remarks())
        if calibration.other_settings:
            out()
        _print_wrapped(calibration.caption())
    return EXIT_OK


def _print_wrapped(lines: Sequence[str]) -> None:
    for line in lines:
        for part in wrapped(line):
            out(part)


def _run(planned: PlannedStudy, session: Session, seeds: int, jobs: int | None, resume_command: str) -> None:
    """Run the first seeds of the study; the records belong to the study."""
    from paribus.api import run
    from paribus.runner.jobs import default_jobs
    from paribus.runner.progress_bar import StudyProgress
    from paribus.slots.launcher import Plugins

    part = _first(planned, seeds)
    remaining = [trial for trial in part.plan.trials if planned.store.state(trial.identity) not in ("done", "diverged")]
    if remaining or not part.plan.is_complete:
        jobs = jobs or default_jobs(planned)
        plugins = Plugins(tuple(map(str, session.plugins)), none=session.no_plugins)
        with StudyProgress(part, remaining, jobs) as progress:
            run(part, jobs=jobs, plugins=plugins, resume=resume_command, on_event=progress.on_event, repeat=False)


def _first(planned: PlannedStudy, seeds: int) -> PlannedStudy:
    """Restrict a planned study, and its later plans, to the first seeds."""
    seed_set = set(planned.plan.study.seeds[:seeds])
    trials = tuple(trial for trial in planned.plan.trials if trial.seed in seed_set)
    make_plan = planned.make_plan
    return replace(
        planned,
        plan=replace(planned.plan, trials=trials),
        make_plan=None if make_plan is None else lambda: _first(make_plan(), seeds),
    )
