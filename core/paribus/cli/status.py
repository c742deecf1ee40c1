"""`paribus status`: the state of every trial of a study."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from paribus.cli.console import Session, note, out, out_versioned, store_option, table
from paribus.errors import EXIT_FAILED, EXIT_OK
from paribus.storage.store import LOG_HINT

if TYPE_CHECKING:
    from paribus.planning.api import PlannedStudy
    from paribus.storage.store import Store

NOT_NEEDED = "not needed"  # the verdict of its variant was reached with fewer seeds
WAITING = frozenset({"pending", "interrupted", "failed", "out-of-memory", "timeout"})
HEALTHY = frozenset({"done", "pending", "running", "interrupted", NOT_NEEDED})


@click.command("status")
@click.argument("study")
@store_option
@click.option("--trials", "per_trial", is_flag=True, help="Print a line for each trial, with its folder.")
@click.option("--watch", "watched", is_flag=True, help="Show the trials with their losses until all have ended.")
@click.option("--json", "as_json", is_flag=True, help="Print the trials as JSON.")
@click.pass_obj
def verb(session: Session, study: str, store: Path, per_trial: bool, watched: bool, as_json: bool) -> int:
    """Print the state of each trial of a study.

    `paribus status quickstart`

    STUDY is the name of an installed study or a path. A trial is pending, running, interrupted, done, diverged, failed,
    out of memory or timed out. --watch works beside a run in another terminal, and on another machine.
    """
    from paribus.planning.tuning import pending_notes
    from paribus.runner.replay import stale_notes

    planned = session.study(study, store=store, read_only=True)
    if watched:
        from paribus.cli._watch import watch

        planned = watch(planned, trial_states).planned
    states = trial_states(planned)
    rows: list[dict[str, Any]] = [
        {
            "variant": trial.variant,
            **({"setting": trial.setting} if trial.setting else {}),
            **({"stage": trial.stage} if trial.stage else {}),
            "seed": trial.seed,
            "state": states[trial.identity],
            **_step(planned.store, trial.identity, states[trial.identity]),
            "identity": trial.identity,
            "reason": _failure_reason(planned.store, trial.identity, states[trial.identity]),
        }
        for trial in planned.plan.trials
    ]
    code = EXIT_OK if all(row["state"] in HEALTHY for row in rows) else EXIT_FAILED
    for line in planned.store.messages:
        note(line)
    if as_json:
        out_versioned({"study": planned.name, "trials": rows})
        return code
    if per_trial:
        folder = planned.store.folder
        cells = [(_label(r), f"seed {r['seed']}", _state(r), str(folder(r["identity"]))) for r in rows]
        for line in table(cells):
            out(line)
    else:
        for line in table([(name, _state_counts(rows, name)) for name in dict.fromkeys(map(_label, rows))]):
            out(line)
    for line in _failure_notes(rows):
        note(line)
    notes = [*stale_notes(planned, session.command("verify", study, store=store)), *pending_notes(planned.plan.tuned)]
    if any(setting.untimed for setting in planned.plan.settings):
        from paribus.runner.match_time import unsolved_matches

        notes = [*unsolved_matches(planned), *notes]
    for line in notes:
        note(line)
    skipped = sum(row["state"] == NOT_NEEDED for row in rows)
    unfinished = sum(row["state"] not in ("done", "diverged", NOT_NEEDED) for row in rows)
    out()
    next_step = (
        f"; next: {session.command('run', study, store=store)}" if unfinished or not planned.plan.is_complete else ""
    )
    skipped_note = f", {skipped} are not needed" if skipped else ""
    recorded = len(rows) - unfinished - skipped
    out(f"{recorded} of {len(rows)} trials have a record in {planned.store.root.resolve()}{skipped_note}{next_step}")
    return code


def trial_states(planned: PlannedStudy) -> dict[str, str]:
    """Return the state of each trial of a study."""
    states: dict[str, str] = {trial.identity: planned.store.state(trial.identity) for trial in planned.plan.trials}
    if planned.plan.study.looks:  # the analysis takes longer to import than the states to read
        from paribus.analysis.api import skipped_trials

        states |= {identity: NOT_NEEDED for identity in skipped_trials(planned) if states[identity] in WAITING}
    return states


def _failure_reason(store: Store, identity: str, state: str) -> str:
    failure = None if state in HEALTHY else store.failure(identity)
    return f"{failure['reason']}{store.log_hint(identity)}" if failure is not None else ""


def _failure_notes(rows: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Yield why trials failed, each reason once, with the log of the first trial that has it."""
    groups: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
    for row in rows:
        if row["reason"]:
            groups.setdefault((row["state"], row["reason"].partition(LOG_HINT)[0]), []).append(row)
    for (state, _), (first, *others) in groups.items():
        count = f", and {len(others)} more" if others else ""
        yield f"{_label(first)}, seed {first['seed']}{count}: {state}: {first['reason']}"


def _step(store: Store, identity: str, state: str) -> dict[str, int]:
    """Return the last step of a trial that was interrupted, if it made one."""
    from paribus.runner.progress import last_step
    from paribus.storage.store import PROGRESS

    step = last_step(store.folder(identity) / PROGRESS) if state == "interrupted" else 0
    return {"step": step} if step else {}


def _state(row: Mapping[str, Any]) -> str:
    return f"{row['state']} at step {row['step']}" if "step" in row else str(row["state"])


def _label(row: Mapping[str, Any]) -> str:
    return ", ".join(str(row[key]) for key in ("variant", "setting", "stage") if key in row)


def _state_counts(rows: list[dict[str, Any]], label: str) -> str:
    counts = Counter(_state(row) for row in rows if _label(row) == label)
    return ", ".join(f"{count} {state}" for state, count in counts.most_common())
