"""What the witness of a program has recorded, from the file of each of its processes."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from paribus.errors import DataError, Problem
from paribus.storage.atomic import digest_json

WITNESS_FILE: Final = "paribus-witness.jsonl"  # in the folder in which the program runs
TRAINING: Final = "train"  # split of the training batches

Line = Mapping[str, Any]


def read_witness(folder: Path) -> dict[str, Any]:
    """Return the tensors, batches and environment that a program has recorded in its folder; nothing without a witness.

    The first process describes the tensors. The batches of a split are those of all processes.
    """
    processes = [list(witness_lines(path)) for path in sorted(folder.glob(f"{WITNESS_FILE}*"), key=_rank)]
    try:
        return _merged_lines(processes) if processes else {}
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        message = f"the file of the witness is not as `paribus.witness` writes it: {error!r}"
        raise DataError(Problem(code="invalid-witness", location=WITNESS_FILE, message=message)) from error


def _merged_lines(processes: Sequence[Sequence[Line]]) -> dict[str, Any]:
    models = [line for line in processes[0] if "tensors" in line]
    last_states = [next((line for line in reversed(lines) if "batches" in line), {}) for lines in processes]
    splits = dict.fromkeys(split for state in last_states for split in state.get("batches", ()))
    return {
        "tensors": {name: tensor for line in models for name, tensor in line["tensors"].items()},
        "late": max((int(line["after"]) for line in models), default=0),
        "environment": {key: str(value) for key, value in last_states[0].get("environment", {}).items()},
        "batches": {split: _merged([state.get("batches", {}).get(split) for state in last_states]) for split in splits},
    }


def witness_lines(path: Path) -> Iterator[Line]:
    """Yield the lines of the file of one process."""
    for number, text in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        try:
            line = json.loads(text)
        except ValueError:
            line = None
        if not isinstance(line, dict):
            message, location = f"this is no JSON object: {text[:60]!r}", f"{path.name}:{number}"
            raise DataError(Problem(code="invalid-line", location=location, message=message, valid="JSON lines"))
        yield line


def _rank(path: Path) -> int:
    suffix = path.name.removeprefix(WITNESS_FILE).removeprefix(".")
    return int(suffix) if suffix.isdecimal() else 0


def _merged(batches: Sequence[Line | None]) -> dict[str, Any]:
    """Return the batches of all processes: their tokens and targets add up."""
    known = [item for item in batches if item is not None]
    if len(known) == 1:
        return dict(known[0])
    counts = {unit: [item[unit] for item in known] for unit in ("tokens", "targets")}
    return {
        "count": known[0]["count"],
        **{unit: None if None in values else sum(values) for unit, values in counts.items()},
        "digest": digest_json([item["digest"] for item in known]),
        "digests": {
            count: digest_json([item["digests"].get(count) for item in known]) for count in known[0]["digests"]
        },
    }
