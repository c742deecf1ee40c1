"""Budgets: how much every variant may spend on its training, in steps, tokens, operations or seconds."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, Final

from paribus.errors import Problem, SpecError, join_names
from paribus.specs.tree import Keys, shown
from paribus.specs.values import Validator

WHOLE: Final = ("steps", "tokens")
BUDGETS: Final = (*WHOLE, "flops", "seconds")
MAX_STEPS: Final = 10**12  # steps, as a spec has them
CUT_KEYS: Final = {"flops": "trainer.max_steps", "seconds": "trainer.max_time"}
"""What a budget cuts at another place in each variant; that they differ in it is what was asked for."""

Budget = Mapping[str, float]
FlopsPerStep = Callable[[Mapping[str, Any]], int]  # the training operations of one step of a resolved spec


def parse_budget(validator: Validator, given: Any, at: Keys) -> dict[str, float]:
    """A budget as it is written; nothing where none is."""
    if given is None:
        return {}
    found = validator.mapping(given, at, join_names(BUDGETS)) or {}
    for key, value in found.items():
        if key not in BUDGETS:
            validator.unknown(key, (*at, key), BUDGETS)
        elif key in WHOLE and (not isinstance(value, int) or isinstance(value, bool) or value < 1):
            validator.add_error("wrong-type", (*at, key), f"this is {shown(value)}", "a whole number ≥ 1")
        elif isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < math.inf:
            validator.add_error("wrong-type", (*at, key), f"this is {shown(value)}", "a number > 0")
    if len(found) > 1:
        validator.add_error("too-many", at, "a budget is in one unit", join_names(BUDGETS))
    return dict(found)


def budget_changes(budget: Budget, data: Mapping[str, Any], steps: int | None) -> list[tuple[str, Any]]:
    """What a budget comes to in a spec; `steps` is what the operations of a step made of one in FLOPs."""
    if "seconds" in budget:
        return [("trainer.max_steps", None), ("trainer.max_time", {"seconds": budget["seconds"]})]
    if "flops" in budget:
        found: float | None = steps or 1  # until it is known what a step takes
    elif "tokens" in budget:
        batch = (data.get("data") or {}).get("batch", 32)
        length = (data.get("dims") or {}).get("length", 1)
        whole = isinstance(batch, int) and isinstance(length, int)
        found = max(1, math.ceil(budget["tokens"] / (batch * length))) if whole else None
    else:
        found = budget.get("steps")
    return [] if found is None else [("trainer.max_steps", found)]


def steps_for(flops: float, a_step: int, *, variant: str, where: str) -> int:
    """As many steps as come nearest to a budget; one that is spent before the first step ends is an error."""
    steps = round(flops / a_step)
    if flops < a_step or steps > MAX_STEPS:
        what = f"one step of {variant} takes {a_step:,} FLOPs, and the budget is {flops:,.0f}"
        most = f"{MAX_STEPS * a_step:.3g}"
        raise SpecError(
            Problem(
                code="out-of-range", path="budget.flops", location=where, message=what, valid=f"≥ {a_step:,}, ≤ {most}"
            )
        )
    return steps


def budget_cuts(budget: Budget, spec: Mapping[str, Any]) -> dict[str, Any]:
    """Where the budget cuts a trial, by the key of its spec: nothing where it cuts all of them alike."""
    return {key: _at(spec, key) for unit, key in CUT_KEYS.items() if unit in budget}


def _at(spec: Any, dotted: str) -> Any:
    for key in dotted.split("."):
        spec = (spec or {}).get(key)
    return spec
