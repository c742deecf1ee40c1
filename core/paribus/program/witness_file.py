"""What the witness of a program has recorded, from the file of each of its processes."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from paribus.errors import DataError, Problem
from paribus.storage.atomic import digest_json

WITNESS_FILE: Final = "paribus-witness.jsonl"  # in the folder in which the program runs

Line = Mapping[str, Any]


def read_witness(folder: Path) -> dict[str, Any]:
    """Return the tensors, batches and environment that a program has recorded in its folder; nothing without a witness.

    The first process describes the optimizers. The batches of a split are those of all processes, and so are the values
    of a tensor of which they hold parts.
    """
    processes = [list(witness_lines(path)) for path in witness_files(folder)]
    try:
        return _merged_lines(processes) if processes else {}
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        message = f"the file of the witness is not as `paribus.witness` writes it: {error!r}"
        raise DataError(Problem(code="invalid-witness", location=WITNESS_FILE, message=message)) from error


def witness_files(folder: Path) -> list[Path]:
    """Return the file of each process, in the order in which they began to write."""
    return sorted(folder.glob(f"{WITNESS_FILE}*"), key=lambda path: (path.stat().st_ctime_ns, path.name))


def _merged_lines(processes: Sequence[Sequence[Line]]) -> dict[str, Any]:
    ranks = [int(lines[-1].get("rank", 0)) if lines else 0 for lines in processes]
    ordered = [lines for _, lines in sorted(zip(ranks, processes, strict=True), key=lambda it: it[0])]
    models = [[line for line in lines if "tensors" in line] for lines in ordered]
    states = [(rank, state) for rank, lines in zip(ranks, processes, strict=True) if (state := _last_state(lines))]
    batches: dict[str, dict[int, Line]] = {}
    for rank, state in states:
        for split, recorded in state["batches"].items():
            if rank in batches.setdefault(split, {}):
                message = f"two processes of rank {rank} have recorded the split `{split}`"
                raise DataError(Problem(code="invalid-witness", location=WITNESS_FILE, message=message))
            batches[split][rank] = recorded
    parts: dict[str, list[Any]] = {}  # of each tensor, by rank
    for lines in models:
        own: dict[str, Any] = {}
        for line in lines:
            own = {**own, **line["tensors"]} if "changed" in line else {**line["tensors"], **own}
        for name, tensor in own.items():
            parts.setdefault(name, []).append(tensor)
    optimizers = [state["optimizers"] for _, state in sorted(states, key=lambda it: it[0]) if "optimizers" in state]
    return {
        "tensors": {name: _merged_tensor(by_rank) for name, by_rank in parts.items()},
        "late": max((int(line["after"]) for lines in models for line in lines), default=0),
        **({"optimizers": optimizers[0]} if optimizers else {}),
        "environment": {
            key: str(value) for key, value in (states[0][1].get("environment", {}) if states else {}).items()
        },
        "batches": {split: _merged([by_rank[rank] for rank in sorted(by_rank)]) for split, by_rank in batches.items()},
    }


def _merged_tensor(parts: Sequence[Line]) -> Line:
    """Return the description of a tensor: that of each process, as of a replica, or of the parts of all together."""
    if all(part == parts[0] for part in parts):
        return parts[0]
    shapes, signs = [part["shape"] for part in parts], [part["signs"] for part in parts]
    return {
        **parts[0],
        "shape": shapes[0] if all(shape == shapes[0] for shape in shapes) else shapes,
        "value": digest_json([part["value"] for part in parts]),
        "signs": digest_json(signs) if any(signs) else "",
    }


def _last_state(lines: Sequence[Line]) -> Line:
    return next((line for line in reversed(lines) if "batches" in line), {})


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


def _merged(known: Sequence[Line]) -> dict[str, Any]:
    """Return the batches of all processes: their tokens and targets add up."""
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
