"""`paribus status`: what has become of every trial of a study."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from paribus.cli.console import STORE, Session, note, out, out_json, table
from paribus.errors import EXIT_FAILED, EXIT_OK

if TYPE_CHECKING:
    from paribus.storage.store import Store

SPARED = "not needed"  # as its variant's verdict was reached with fewer seeds
WAITING = frozenset({"pending", "interrupted", "failed", "out-of-memory", "timeout"})
HEALTHY = frozenset({"done", "pending", "running", "interrupted", SPARED})


@click.command("status")
@click.argument("study")
@click.option("--store", type=click.Path(path_type=Path), default=STORE, show_default=True)
@click.option("--trials", "each", is_flag=True, help="A line for each trial, with its folder.")
@click.option("--json", "as_json", is_flag=True)
@click.pass_obj
def verb(session: Session, study: str, store: Path, each: bool, as_json: bool) -> int:
    """Say what has become of the trials of STUDY: pending, running, done, diverged, failed."""
    from paribus.analysis.api import skipped_trials
    from paribus.planning.api import study as planned_of
    from paribus.planning.tuning import pending_notes
    from paribus.runner.match_time import unsolved_matches

    planned = planned_of(study, registry=session.index(), store=store)
    states: dict[str, str] = {trial.identity: planned.store.state(trial.identity) for trial in planned.plan.trials}
    states |= {identity: SPARED for identity in skipped_trials(planned) if states[identity] in WAITING}
    rows: list[dict[str, Any]] = [
        {
            "variant": trial.variant,
            **({"setting": trial.setting} if trial.setting else {}),
            **({"stage": trial.stage} if trial.stage else {}),
            "seed": trial.seed,
            "state": states[trial.identity],
            "identity": trial.identity,
            "why": _why(planned.store, trial.identity, states[trial.identity]),
        }
        for trial in planned.plan.trials
    ]
    for line in planned.store.messages:
        note(line)
    if as_json:
        out_json(rows)
        return EXIT_OK
    if each:
        folder = planned.store.folder
        cells = [(_whose(r), f"seed {r['seed']}", r["state"], str(folder(r["identity"]))) for r in rows]
        for line in table(cells):
            out(line)
    else:
        for line in table([(name, _counted(rows, name)) for name in dict.fromkeys(map(_whose, rows))]):
            out(line)
    for row in rows:
        if row["why"]:
            note(f"{_whose(row)}, seed {row['seed']}: {row['state']}: {row['why']}")
    for line in (*unsolved_matches(planned), *pending_notes(planned.plan.tuned)):
        note(line)
    spared = sum(row["state"] == SPARED for row in rows)
    left = sum(row["state"] not in ("done", "diverged", SPARED) for row in rows)
    out()
    following = f"; next: {session.command('run', study, store=store)}" if left or not planned.plan.is_complete else ""
    saved = f", {spared} are not needed" if spared else ""
    there = len(rows) - left - spared
    out(f"{there} of {len(rows)} trials have a record in {planned.store.root.resolve()}{saved}{following}")
    return EXIT_OK if all(row["state"] in HEALTHY for row in rows) else EXIT_FAILED


def _why(store: Store, identity: str, state: str) -> str:
    failure = None if state in HEALTHY else store.failure(identity)
    return f"{failure['why']}{store.log_hint(identity)}" if failure is not None else ""


def _whose(row: Mapping[str, Any]) -> str:
    return ", ".join(str(row[key]) for key in ("variant", "setting", "stage") if key in row)


def _counted(rows: list[dict[str, Any]], whose: str) -> str:
    counts = Counter(str(row["state"]) for row in rows if _whose(row) == whose)
    return ", ".join(f"{count} {state}" for state, count in counts.most_common())
