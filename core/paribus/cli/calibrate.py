"""`paribus calibrate`: what a study can tell with its seeds, and how many of them an effect takes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from paribus.cli.console import STORE, Session, note, out, out_json, wrapped
from paribus.errors import EXIT_OK, NotComparableError, Problem

if TYPE_CHECKING:
    from paribus.planning.api import PlannedStudy


@click.command("calibrate")
@click.argument("study")
@click.option(
    "--effect",
    type=click.FloatRange(0, min_open=True),
    default=None,
    help="The difference that is to be seen; the study's margin, if not given.",
)
@click.option("--power", type=click.FloatRange(0, 1, min_open=True, max_open=True), default=0.8, show_default=True)
@click.option("--pilot", type=click.IntRange(2), default=None, metavar="K", help="First run the study's first K seeds.")
@click.option("--jobs", type=click.IntRange(1), default=None, help="Of a pilot: trials at a time.")
@click.option("--store", type=click.Path(path_type=Path), default=STORE, show_default=True)
@click.option("--accept-code", multiple=True, metavar="HASH", help="Take in records of this older code.")
@click.option("--json", "as_json", is_flag=True)
@click.pass_obj
def verb(
    session: Session,
    study: str,
    effect: float | None,
    power: float,
    pilot: int | None,
    jobs: int | None,
    store: Path,
    accept_code: tuple[str, ...],
    as_json: bool,
) -> int:
    """Say how much the seeds of STUDY differ, the least effect that they can show, and the seeds that one takes.

    `paribus calibrate quickstart --effect 0.02`
    """
    from paribus.analysis.calibrate import calibrate
    from paribus.planning.api import study as planned_of

    planned = planned_of(study, registry=session.index(), store=store)
    if pilot is not None:
        asked = ["--pilot", str(pilot), *([] if jobs is None else ["--jobs", str(jobs)])]
        _run(planned, session, pilot, jobs, session.command("calibrate", study, *asked, store=store))
        planned = planned.replan()
    try:
        found = calibrate(planned, effect=effect, power=power, accept_code=accept_code)
    except NotComparableError as error:
        again = session.command("calibrate", study, "--pilot", "5", store=store)
        codes = ("too-few", "no-records")
        raise NotComparableError(
            *(_with(problem, f"`{again}`") if problem.code in codes else problem for problem in error.problems)
        ) from None
    for line in planned.store.messages:
        note(line)
    if as_json:
        out_json(found.to_json())
    else:
        out(found.title)
        for each in found.settings:
            for line in ("", *([each.setting, ""] if each.setting else []), *each.table(), ""):
                out(line)
            _say(each.remarks())
        if found.other_settings:
            out()
        _say(found.caption())
    return EXIT_OK


def _say(lines: Sequence[str]) -> None:
    for line in lines:
        for part in wrapped(line):
            out(part)


def _with(problem: Problem, command: str) -> Problem:
    return replace(problem, valid=f"{command}, which runs the first 5 seeds")


def _run(planned: PlannedStudy, session: Session, seeds: int, jobs: int | None, again: str) -> None:
    """Runs the first seeds of the study; their records are the study's own."""
    from paribus.api import run
    from paribus.cli._progress import StudyProgress
    from paribus.runner.api import default_jobs
    from paribus.slots.launcher import Plugins

    part = _first(planned, seeds)
    left = [trial for trial in part.plan.trials if planned.store.state(trial.identity) not in ("done", "diverged")]
    if left or not part.plan.is_complete:
        jobs = jobs or default_jobs(planned)
        plugins = Plugins(tuple(map(str, session.plugins)), none=session.no_plugins)
        with StudyProgress(part, left, jobs) as progress:
            run(part, jobs=jobs, plugins=plugins, resume=again, on_event=progress.on_event)


def _first(planned: PlannedStudy, seeds: int) -> PlannedStudy:
    """The study with its first seeds alone, whatever is planned of it later."""
    kept = set(planned.plan.study.seeds[:seeds])
    trials = tuple(trial for trial in planned.plan.trials if trial.seed in kept)
    make_plan = planned.make_plan
    return replace(
        planned,
        plan=replace(planned.plan, trials=trials),
        make_plan=None if make_plan is None else lambda: _first(make_plan(), seeds),
    )
