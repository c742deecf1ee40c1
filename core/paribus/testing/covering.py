"""Covering arrays: so few rows that any few values which go together stand together in one of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import combinations, product

Row = dict[str, str]
Few = tuple[tuple[str, str], ...]
"""Some of a row, in the order of the axes: (axis, value) each."""


def covering(axes: Mapping[str, Sequence[str]], possible: Callable[[Few], bool], strength: int = 3) -> list[Row]:
    """Rows with a value of each axis, in which every `strength` values of different axes that are possible come up.

    `possible` says whether some row with these values may be. Greedy, one row for the first that is still missing, and
    the same rows each time: "The AETG System" (Cohen et al. 1997), with no draws.
    """
    missing = dict.fromkeys(few for few in _all(axes, strength) if possible(few))
    rows: list[Row] = []
    while missing:
        row = _filled(dict(next(iter(missing))), axes, possible, missing, strength, turn=len(rows))
        for few in _within(row, axes, strength):
            missing.pop(few, None)
        rows.append(row)
    return rows


def _all(axes: Mapping[str, Sequence[str]], strength: int) -> Iterator[Few]:
    """Of the axes with the most values first, as those need the most rows, which then have the others for nothing."""
    chosen = sorted(combinations(axes, strength), key=lambda names: -_size(axes, names))
    for names in chosen:
        for values in product(*(axes[name] for name in names)):
            yield tuple(zip(names, values, strict=True))


def _size(axes: Mapping[str, Sequence[str]], names: Sequence[str]) -> int:
    size = 1
    for name in names:
        size *= len(axes[name])
    return size


def _filled(
    row: Row,
    axes: Mapping[str, Sequence[str]],
    possible: Callable[[Few], bool],
    missing: Mapping[Few, None],
    strength: int,
    turn: int,
) -> Row:
    """The row with what it lacks, each time the value with which most of what is missing comes up."""
    for name in sorted((name for name in axes if name not in row), key=lambda name: -len(axes[name])):
        values = axes[name]
        turned = [values[(place + turn) % len(values)] for place in range(len(values))]  # or ties are one value's
        fitting = [value for value in turned if possible(_sorted({**row, name: value}, axes))]
        assert fitting, "what is possible can be filled up"
        beside = list(_within(row, axes, strength - 1))
        row[name] = max(
            fitting, key=lambda value: sum(_sorted({**dict(few), name: value}, axes) in missing for few in beside)
        )
    return row


def _within(row: Row, axes: Mapping[str, Sequence[str]], strength: int) -> Iterator[Few]:
    return combinations(_sorted(row, axes), strength)


def _sorted(row: Row, axes: Mapping[str, Sequence[str]]) -> Few:
    return tuple((name, row[name]) for name in axes if name in row)
