"""`paribus verify`, and what other commands say of older records and of killed trials."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import paribus
from paribus.storage import engine
from paribus.storage.atomic import write_json
from paribus.storage.saved_model import RECORD
from paribus.storage.store import PROGRESS

Cli = Callable[..., Any]
WriteStudy = Callable[..., Path]


@pytest.mark.usefixtures("trials_in_this_process")
def test_records_of_an_edited_engine_are_verified_and_refused_by_name(
    cli: Cli, write_study: WriteStudy, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = str(write_study(seeds=1))
    planned = paribus.run(path)
    assert "nothing to verify" in cli("verify", path).out
    trial = planned.plan.trials[1]
    record = planned.store.record(trial.identity)
    assert record is not None
    record["result"]["losses"][1] += 1e-6
    write_json(planned.store.folder(trial.identity) / RECORD, record)

    monkeypatch.setattr(engine, "engine_hash", lambda: "edited")
    note = "2 records are of other code, and would be made again; changed since: the engine; to check them:"
    assert f"{note} paribus verify {path}" in cli("status", path).err
    result = cli("verify", path)
    assert result.code == 1
    lines = result.out.splitlines()
    assert lines[0].split() == ["baseline", "seed", "0", "equal:", "all", "3", "steps", "of", "seed", "0"]
    assert lines[1].startswith("attention=mqa  seed 0  differs first in the loss of step 2: ")
    assert f"1 record kept, 1 not; next: paribus run {path} · paribus compare {path}" in result.out
    documents = json.loads(cli("verify", path, "--json").out)
    assert [(document["variant"], document["equal"]) for document in documents] == [("attention=mqa", False)]
    assert "Skipped: 1 record (attention=mqa: seed 0), because of changes since: the engine" in " ".join(
        cli("compare", path).out.split()
    )


def test_a_killed_trial_is_interrupted_at_its_last_step(cli: Cli, write_study: WriteStudy) -> None:
    path = write_study(seeds=2)
    planned = paribus.study(path)
    for trial, lines in zip(planned.plan.trials, ([70, 60], [], None), strict=False):
        folder = planned.store.create_folder(trial)
        if lines is not None:
            text = "".join(f"{json.dumps({'step': step, 'loss': 1.0})}\n" for step in lines)
            (folder / PROGRESS).write_text(f"{text}{{")
    result = cli("status", str(path))
    assert result.code == 0
    assert "1 interrupted at step 70, 1 pending" in result.out
    assert "1 interrupted, 1 pending" in result.out
    rows = json.loads(cli("status", str(path), "--json").out)["trials"]
    assert [(row["state"], row.get("step")) for row in rows] == [
        ("interrupted", 70),
        ("interrupted", None),
        ("pending", None),
        ("pending", None),
    ]
    (planned.store.folder(planned.plan.trials[0].identity) / f"{RECORD}.1234.bad").touch()
    assert "interrupted at" not in cli("status", str(path)).out
