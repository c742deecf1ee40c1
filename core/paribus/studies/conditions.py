"""Conditions on axes: values that apply only where an earlier axis has a certain value."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from paribus.errors import join_names
from paribus.specs.diff import holds
from paribus.specs.tree import Keys, value_text
from paribus.specs.values import Validator

When = Mapping[str, Any]  # by axis: the value that it must have, or a list of allowed values
Conditions = Mapping[str, Sequence[When]]  # by axis: one for each value, empty where the value always applies

MAX_COUNTED: Final = 1_000_000  # combinations of dependent axes that are counted one by one
AXIS_KEYS: Final = {"values", "when"}
VALUE_KEYS: Final = {"value", "when"}
EXAMPLE: Final = "attention.window: {values: [8, 16], when: {attention: restricted}}"


def parse_axis(validator: Validator, axis: Any, keys: Keys) -> tuple[list[Any], list[When]]:
    """Return the values of an axis with their conditions: `[mha, {value: …, when: …}]` or `{values: […], when: …}`."""
    axis_when: When = {}
    if isinstance(axis, Mapping) and set(axis) <= AXIS_KEYS and "values" in axis:
        axis_when = _parse_when(validator, axis.get("when", {}), (*keys, "when"))
        axis, keys = axis["values"], (*keys, "values")
    if not isinstance(axis, list) or not axis:
        message = f"expected a list of values, got {value_text(axis)}"
        validator.add_error("wrong-type", keys, message, f"[a, b], or with a condition: {EXAMPLE}")
        return [], []
    values: list[Any] = []
    whens: list[When] = []
    for index, item in enumerate(axis):
        if isinstance(item, Mapping) and set(item) == VALUE_KEYS:
            values.append(item["value"])
            whens.append({**axis_when, **_parse_when(validator, item["when"], (*keys, index, "when"))})
        else:
            values.append(item)
            whens.append({**axis_when})
    return values, whens


def _parse_when(validator: Validator, when: Any, keys: Keys) -> When:
    return validator.as_mapping(when, keys, "when: {attention: restricted}") or {}


def check_conditions(validator: Validator, vary: Mapping[str, Sequence[Any]], conditions: Conditions) -> None:
    """Report conditions on axes that come later or do not exist, and on values that the axis does not have."""
    previous: list[str] = []
    for key, whens in conditions.items():
        for when in whens:
            for axis, allowed in when.items():
                _check_condition(validator, key, axis, allowed, vary, previous)
        previous.append(key)


def _check_condition(
    validator: Validator, key: str, axis: str, allowed: Any, vary: Mapping[str, Sequence[Any]], previous: Sequence[str]
) -> None:
    if axis not in previous:
        message = f'`{key}` depends on "{axis}", which is not an axis above it'
        validator.add_error(
            "unknown-axis", ("vary", key), message, join_names(previous) or "an axis that is listed first"
        )
    elif not any(_matches(value, allowed) for value in vary[axis]):
        message = f"`{key}` never applies: `{axis}` never has the value of its condition"
        names = (value.get("name", value) if isinstance(value, Mapping) else value for value in vary[axis])
        validator.add_error("never-applies", ("vary", key), message, join_names(names))


def _matches(value: Any, allowed: Any) -> bool:
    if isinstance(allowed, list) and any(_matches(value, item) for item in allowed):
        return True
    if isinstance(value, str) and isinstance(allowed, Mapping):
        value = {"name": value}
    return holds(value, allowed)


def applicable_cells(vary: Mapping[str, Sequence[Any]], conditions: Conditions) -> Iterator[dict[str, Any]]:
    """Yield every combination of values that apply; an axis without such a value stays as in the base."""
    axes = list(vary)

    def extend(index: int, cell: dict[str, Any]) -> Iterator[dict[str, Any]]:
        if index == len(axes):
            yield cell
            return
        key = axes[index]
        whens = conditions.get(key) or [{}] * len(vary[key])
        applicable = [value for value, when in zip(vary[key], whens, strict=True) if _is_met(when, cell)]
        for value in applicable:
            yield from extend(index + 1, {**cell, key: value})
        if not applicable:
            yield from extend(index + 1, cell)

    return extend(0, {})


def _is_met(when: When, cell: Mapping[str, Any]) -> bool:
    return all(axis in cell and _matches(cell[axis], allowed) for axis, allowed in when.items())


def count_combinations(vary: Mapping[str, Sequence[Any]], conditions: Conditions) -> int:
    """Return the number of applicable cells; above `MAX_COUNTED`, that of all cells."""
    dependent = {key for key, whens in conditions.items() for when in whens if when}
    dependent |= {axis for whens in conditions.values() for when in whens for axis in when}
    count = math.prod(len(vary[key]) for key in dependent)
    if count <= MAX_COUNTED:
        axes = {key: values for key, values in vary.items() if key in dependent}
        count = sum(1 for _ in applicable_cells(axes, conditions))
    return count * math.prod(len(values) for key, values in vary.items() if key not in dependent)
