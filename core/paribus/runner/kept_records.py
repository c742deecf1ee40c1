"""Copies of older records under the identities of the present code, which was proven to compute them."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from paribus.errors import ParibusError
from paribus.planning.older_records import OlderRecord
from paribus.specs.program_spec import is_program
from paribus.storage.atomic import write_json
from paribus.storage.engine import engine_hash
from paribus.storage.lock import LOCK
from paribus.storage.saved_model import RECORD, TRIAL
from paribus.storage.store import FAILURE, Store

OWN_FILES: Final = frozenset({RECORD, TRIAL, FAILURE, LOCK})  # of a trial's folder, which a kept record writes anew


def keep_record(store: Store, older: OlderRecord, *, replayed: str, steps: int) -> None:
    """Let a record count as one of the present code, under the identity of the planned trial. The old one stays.

    The copy names the record that was `replayed`, and the number of its steps.
    """
    record, trial = older.record, older.trial
    source, target = store.folder(record["identity"]), store.create_folder(trial)
    lock = store.lock(trial.identity)
    if not lock.try_acquire():
        return  # a run computes it
    try:
        if target != source:
            for file in sorted(source.iterdir()):
                if file.is_file() and file.name not in OWN_FILES:
                    link_file(file, target / file.name)
            with suppress(ParibusError):
                rehearsal = store.rehearsal(record["identity"])
                if rehearsal is not None:
                    store.write_rehearsal(trial.identity, {**rehearsal, "identity": trial.identity})
        verified = {
            "engine": engine_hash(),
            "identity": record["identity"],
            "changed": list(older.changed),
            "replayed": replayed,
            "steps": steps,
            "time": time.time(),
        }
        if is_program(trial.spec):
            certificate = {**record["result"]["certificate"], "inputs": dict(trial.components)}
            record = {**record, "result": {**record["result"], "certificate": certificate}}
        document = {
            **record,
            "identity": trial.identity,
            "spec": _current_spec(older, store),
            "provenance": {**record["provenance"], "verified": verified},
        }
        write_json(target / RECORD, document, files=store.files)
    finally:
        lock.release()


def _current_spec(older: OlderRecord, store: Store) -> Mapping[str, Any]:
    """Return the spec of the planned trial, with its options that are newer than the record."""
    source, parent = older.record["spec"].get("from"), older.trial.parent_id
    if not parent:
        return older.trial.spec if source is None else {**older.trial.spec, "from": source}
    folder = str(store.folder(parent).absolute())
    return {**older.trial.spec, "from": {**source, "trial": parent, "name": folder}}


def link_file(source: Path, target: Path) -> None:
    """Let a second name refer to a file, or copy it where the file system has no such links."""
    if target.exists():
        return
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)
