"""Conditions on axes: values that are only tried where an axis before them has some value."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from paribus.errors import join_names
from paribus.specs.diff import holds
from paribus.specs.tree import Keys, shown
from paribus.specs.values import Validator

When = Mapping[str, Any]  # an axis -> the value that it must have, or several of which it must have one
Conditions = Mapping[str, Sequence[When]]  # by axis: of each value, empty where it always applies

MAX_COUNTED: Final = 1_000_000  # cells of axes that hang together that are counted; beyond it all are taken to apply
VALUES: Final = {"values", "when"}
VALUE: Final = {"value", "when"}
EXAMPLE: Final = "attention.window: {values: [8, 16], when: {attention: restricted}}"


def parse_axis(validator: Validator, given: Any, keys: Keys) -> tuple[list[Any], list[When]]:
    """The values of an axis and when each applies: `[mha, {value: …, when: …}]` or `{values: […], when: …}`."""
    always: When = {}
    if isinstance(given, Mapping) and set(given) <= VALUES and "values" in given:
        always = _when(validator, given.get("when", {}), (*keys, "when"))
        given, keys = given["values"], (*keys, "values")
    if not isinstance(given, list) or not given:
        what = f"an axis is a list of values, but this is {shown(given)}"
        validator.add_error("wrong-type", keys, what, f"[a, b], or with a condition: {EXAMPLE}")
        return [], []
    values: list[Any] = []
    whens: list[When] = []
    for place, value in enumerate(given):
        own: When = {}
        if isinstance(value, Mapping) and set(value) == VALUE:
            own = _when(validator, value["when"], (*keys, place, "when"))
            value = value["value"]  # noqa: PLW2901  # what stands there is a value and its condition
        values.append(value)
        whens.append({**always, **own})
    return values, whens


def _when(validator: Validator, given: Any, keys: Keys) -> When:
    found = validator.mapping(given, keys, "when: {attention: restricted}")
    return found or {}


def check_conditions(validator: Validator, vary: Mapping[str, Sequence[Any]], conditions: Conditions) -> None:
    """A condition is on an axis that is written before, and on a value that it can have."""
    before: list[str] = []
    for key, whens in conditions.items():
        for when in whens:
            for axis, wanted in when.items():
                _possible(validator, key, axis, wanted, vary, before)
        before.append(key)


def _possible(
    validator: Validator, key: str, axis: str, wanted: Any, vary: Mapping[str, Sequence[Any]], before: Sequence[str]
) -> None:
    if axis not in before:
        what = f"`{key}` is to apply when `{axis}` has a value, and no axis of this name is written before it"
        validator.add_error("no-axis", ("vary", key), what, join_names(before) or "an axis that is written first")
    elif not any(_has(value, wanted) for value in vary[axis]):
        what = f"`{key}` would never apply: no value of `{axis}` is what it is to have"
        validator.add_error("never-applies", ("vary", key), what, join_names(map(_said, vary[axis])))


def _said(value: Any) -> str:
    return str(value.get("name", value)) if isinstance(value, Mapping) else str(value)


def _has(value: Any, wanted: Any) -> bool:
    if isinstance(wanted, list) and any(_has(value, each) for each in wanted):
        return True
    if isinstance(value, str) and isinstance(wanted, Mapping):
        value = {"name": value}
    return holds(value, wanted)


def applicable_cells(vary: Mapping[str, Sequence[Any]], conditions: Conditions) -> Iterator[dict[str, Any]]:
    """Every combination of values that apply; an axis of which none does is left as it is in the base."""
    axes = list(vary)

    def of(place: int, cell: dict[str, Any]) -> Iterator[dict[str, Any]]:
        if place == len(axes):
            yield cell
            return
        key = axes[place]
        whens = conditions.get(key) or [{}] * len(vary[key])
        free = [value for value, when in zip(vary[key], whens, strict=True) if _met(when, cell)]
        for value in free:
            yield from of(place + 1, {**cell, key: value})
        if not free:
            yield from of(place + 1, cell)

    return of(0, {})


def _met(when: When, cell: Mapping[str, Any]) -> bool:
    return all(axis in cell and _has(cell[axis], wanted) for axis, wanted in when.items())


def count_combinations(vary: Mapping[str, Sequence[Any]], conditions: Conditions) -> int:
    """How many combinations there are; of more than a million that hang together, as if every value applied."""
    tied = {key for key, whens in conditions.items() for when in whens if when}
    tied |= {axis for whens in conditions.values() for when in whens for axis in when}
    every = math.prod(len(vary[key]) for key in tied)
    if every <= MAX_COUNTED:
        every = sum(
            1 for _ in applicable_cells({key: values for key, values in vary.items() if key in tied}, conditions)
        )
    return every * math.prod(len(values) for key, values in vary.items() if key not in tied)
