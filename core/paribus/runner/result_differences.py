"""Differences between the result of a record and that of its replay, and between their machines."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

Document = Mapping[str, Any]


def first_difference(recorded: Document, replayed: Document) -> str:
    """Describe the first difference of two results in the order of a training; empty if there is none.

    Further keys of the replay, which the present code adds, are no difference; a further tensor is one.
    """
    return next(_differences(recorded, replayed), "")


def _differences(recorded: Document, replayed: Document) -> Iterator[str]:
    older, newer = (result.get("certificate") or {} for result in (recorded, replayed))
    yield from _tensor_differences(older.get("tensors") or {}, newer.get("tensors") or {})
    if older.get("outputs") != newer.get("outputs"):
        yield "the outputs of the untrained model"
    if older.get("validation") != newer.get("validation"):
        yield "the validation examples"
    for step, digest in sorted((older.get("batch_digests") or {}).items(), key=lambda item: int(item[0])):
        if (newer.get("batch_digests") or {}).get(step) != digest:
            yield f"the batches up to step {step}"
            break
    yield from _loss_differences(recorded["losses"], replayed["losses"])
    for point, other in zip(recorded["curve"], replayed["curve"], strict=False):
        for name, value in point.items():
            if not _is_same(value, other.get(name)):
                yield f"`{name}` at step {point['step']}: {value} in the record, {other.get(name)} here"
    if len(recorded["curve"]) != len(replayed["curve"]):
        yield f"the number of evaluations: {len(recorded['curve'])} in the record, {len(replayed['curve'])} here"
    for name, value in recorded.items():
        if name not in ("certificate", "losses", "curve") and not _is_contained(value, replayed.get(name)):
            yield f"`{name}` of the result"
    for name, value in older.items():
        if not _is_contained(value, newer.get(name)):
            yield f"`certificate.{name}` of the result"


def program_difference(recorded: Document, replayed: Document, metric: str) -> str:
    """Describe what differs first between two results of a program: of its witness and its metric; empty if nothing.

    Its other numbers may be times.
    """
    seen, other_seen = (it["certificate"].get("witness") or {} for it in (recorded, replayed))
    if seen and other_seen:
        for text in _tensor_differences(seen["tensors"], other_seen["tensors"]):
            return text
        for split, batches in seen["batches"].items():
            if batches != other_seen["batches"].get(split):
                return f"the batches of the split `{split}`"
    older, newer = (
        [(point["step"], point[metric]) for point in it["curve"] if metric in point] for it in (recorded, replayed)
    )
    for (step, value), other in zip(older, newer, strict=False):
        if other != (step, value):
            return f"`{metric}` at step {step}: {value} in the record, {other[1]} at step {other[0]} here"
    return f"the number of values: {len(older)} in the record, {len(newer)} here" if len(older) != len(newer) else ""


def _tensor_differences(older: Document, newer: Document) -> Iterator[str]:
    for name, tensor in older.items():
        if name not in newer:
            yield f"the tensor `{name}`, which only the record has"
        elif newer[name].get("value") != tensor["value"]:
            yield f"the initial values of `{name}`"
    for name in newer:
        if name not in older:
            yield f"the tensor `{name}`, which the record does not have"


def _loss_differences(older: Sequence[float], newer: Sequence[float]) -> Iterator[str]:
    for step, (value, other) in enumerate(zip(older, newer, strict=False), 1):
        if not _is_same(value, other):
            yield f"the loss of step {step}: {value!r} in the record, {other!r} here"
    if len(older) != len(newer):
        yield f"the number of steps: {len(older)} in the record, {len(newer)} here"


def _is_same(value: Any, other: Any) -> bool:
    if isinstance(value, float) and isinstance(other, float) and math.isnan(value) and math.isnan(other):
        return True
    return bool(value == other)


def _is_contained(value: Any, other: Any) -> bool:
    """Return whether a value is equal to another one, which may have more keys."""
    if isinstance(value, Mapping) and isinstance(other, Mapping):
        return all(_is_contained(item, other.get(key)) for key, item in value.items())
    return _is_same(value, other)


def environment_change(older: Document, newer: Document) -> str:
    """Describe what differs between the machine and the versions of a record and those of its replay."""
    changes: list[str] = []
    for name in ("python", "torch", "lightning", "numpy", "tokenizers"):
        before, now = ((item.get("versions") or {}).get(name) for item in (older, newer))
        if before != now:
            changes.append(f"{name} {before}, here {now}")
    for name in ("device", "name", "threads"):
        before, now = ((item.get("machine") or {}).get(name) for item in (older, newer))
        if before != now:
            changes.append(f"{'processor' if name == 'name' else name} {before}, here {now}")
    return "; ".join(changes)
