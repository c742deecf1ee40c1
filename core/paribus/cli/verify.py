"""`paribus verify`: replay older records, and keep those that the present code computes bit for bit."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from paribus.cli.console import Session, note, out, out_json, store_option, table, wrapped
from paribus.errors import EXIT_FAILED, EXIT_OK, join_names

if TYPE_CHECKING:
    from paribus.runner.progress import Event
    from paribus.runner.replay import Replay


@click.command("verify")
@click.argument("study")
@click.option("--whole", is_flag=True, help="Replay long trials from their first step to their last.")
@click.option(
    "--jobs",
    type=click.IntRange(1),
    default=None,
    help="Number of concurrent replays; default: that of the launcher, one for each core or GPU.",
)
@store_option
@click.option("--json", "as_json", is_flag=True, help="Print the replays as JSON.")
@click.pass_obj
def verb(session: Session, study: str, whole: bool, jobs: int | None, store: Path, as_json: bool) -> int:
    """Replay records that older code made, and keep those that this code computes, too.

    `paribus verify quickstart`

    STUDY is the name of an installed study or a path. After a change of the engine or of a component, one trial of each
    variant is trained again and compared bit for bit with its record: the whole trial if it took at most two minutes,
    else its first steps, and its last ones from its latest checkpoint. Where all is equal, the records of this variant
    count as records of this code; no record is deleted.
    """
    from paribus.api import verify
    from paribus.runner.jobs import default_jobs
    from paribus.runner.replay import stale_records
    from paribus.slots.launcher import Plugins

    planned = session.study(study, store=store)
    stale = stale_records(planned)
    replays: list[Replay] = []
    if stale:
        changes = dict.fromkeys(name for older in stale for name in older.changed)
        note(f"{_records(len(stale))} of other code; changed since: {join_names(changes, 8)}")
        command = session.command("verify", study, *(["--whole"] if whole else []), store=store)
        plugins = Plugins(tuple(map(str, session.plugins)), none=session.no_plugins)
        jobs = jobs or default_jobs(planned)
        replays = verify(planned, whole=whole, jobs=jobs, plugins=plugins, on_event=_show_event, resume=command)
    if as_json:
        out_json([replay.to_json() for replay in replays])
        return EXIT_OK if all(replay.is_equal for replay in replays) else EXIT_FAILED
    for line in table([_cells(replay) for replay in replays]):
        out(line)
    for environment in dict.fromkeys(replay.environment for replay in replays if replay.environment):
        for line in wrapped(f"The machine differs, which may be the cause: {environment}."):
            out(line)
    kept = sum(len(replay.records) for replay in replays if replay.is_equal)
    refused = sum(len(replay.records) for replay in replays if not replay.is_equal)
    out()
    if not replays:
        out("nothing to verify: no record was made by other code, or newer ones replace them")
    else:
        commands = " · ".join(session.command(verb, study, store=store) for verb in ("run", "compare"))
        out(f"{_records(kept)} kept{f', {refused} not' if refused else ''}; next: {commands}")
    return EXIT_FAILED if refused else EXIT_OK


def _records(count: int) -> str:
    return "1 record" if count == 1 else f"{count} records"


def _cells(replay: Replay) -> tuple[str, ...]:
    seeds = join_names(sorted({older.trial.seed for older in replay.records}), 8)
    noun = "seed" if len(replay.records) == 1 else "seeds"
    return replay.label, f"{noun} {seeds}", _result(replay)


def _result(replay: Replay) -> str:
    if not replay.is_equal:
        return replay.difference
    if not replay.steps:
        return "kept: its engine was proven to compute the same"
    steps = (
        f"all {replay.total_steps} steps"
        if replay.steps >= replay.total_steps
        else f"the first {replay.steps} of {replay.total_steps} steps and those from its latest checkpoint"
    )
    return f"equal: {steps} of seed {replay.older.trial.seed}"


def _show_event(event: Event) -> None:
    if event.kind == "started" and event.trial is not None:
        note(f"replaying {event.trial.label} …")
    elif event.kind == "note":
        note(event.text)
