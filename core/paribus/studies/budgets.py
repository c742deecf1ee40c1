"""Budgets: the steps, tokens, FLOPs or seconds that every variant may train for."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, Final

from paribus.errors import Problem, SpecError, join_names
from paribus.registry.class_reader import group_options
from paribus.specs.fields import DATA, MAX_STEPS
from paribus.specs.interpolation import resolve_references
from paribus.specs.tree import UNREAD, Keys, Tree, get_path
from paribus.specs.values import Validator
from paribus.studies import study_keys

WHOLE: Final = ("steps", "tokens")
_OPTIONS: Final = group_options(study_keys.Budget)
BUDGETS: Final = tuple(option.name for option in _OPTIONS)
CUT_KEYS: Final = {"tokens": "trainer.max_steps", "flops": "trainer.max_steps", "seconds": "trainer.max_time"}
"""Keys in which variants may differ because their budget ends them at different steps."""
_BATCH: Final = next(option.default for option in DATA if option.name == "batch")

Budget = Mapping[str, float]
FlopsPerStep = Callable[[Mapping[str, Any]], int]  # training FLOPs of one step of a resolved spec


def parse_budget(validator: Validator, written: Mapping[str, Any] | None, keys: Keys) -> dict[str, float]:
    """Return the valid part of a budget as it is written: a whole number of seconds is not a float."""
    budget = {unit: _as_whole(amount) if unit in WHOLE else amount for unit, amount in (written or {}).items()}
    values = validator.read_given(_OPTIONS, budget, keys, {})
    if len(values) > 1:
        message = f"expected a budget in one unit, got {join_names(values)}"
        validator.add_error("too-many", keys, message, join_names(BUDGETS))
    return {unit: budget[unit] for unit, value in values.items() if value is not UNREAD}


def _as_whole(amount: Any) -> Any:
    """Return a float without a fraction as a whole number: YAML reads 2.5e9 as a float."""
    return int(amount) if isinstance(amount, float) and amount.is_integer() else amount


def budget_changes(budget: Budget, tree: Tree, steps: int | None) -> list[tuple[str, Any]]:
    """Return the changes of a spec that apply a budget; `steps` are those that a budget of FLOPs pays for."""
    if "seconds" in budget:
        return [("trainer.max_steps", None), ("trainer.max_time", {"seconds": budget["seconds"]})]
    if "flops" in budget:
        max_steps: float | None = steps or MAX_STEPS  # until the FLOPs of a step are counted
    elif "tokens" in budget:
        tokens = _tokens_per_step(tree)
        max_steps = max(1, math.ceil(budget["tokens"] / tokens)) if tokens else None
    else:
        max_steps = budget.get("steps")
    return [] if max_steps is None else [("trainer.max_steps", max_steps)]


def _tokens_per_step(tree: Tree) -> int | None:
    """Return the tokens of a step, or None for invalid values, which are reported where the spec is read."""
    values = [get_path(tree.data, "data.batch", _BATCH), get_path(tree.data, "dims.length", 1)]
    if any(isinstance(value, str) for value in values):
        copied = Tree(tree.data, dict(tree.locations))
        resolve_references(copied)
        values = [get_path(copied.data, "data.batch", _BATCH), get_path(copied.data, "dims.length", 1)]
    return math.prod(values) if all(isinstance(value, int) for value in values) else None


def steps_for(flops: float, flops_per_step: int, *, variant: str, location: str) -> int:
    """Return the number of steps nearest to a budget of FLOPs; a budget below one step is an error."""
    steps = round(flops / flops_per_step)
    if flops < flops_per_step or steps > MAX_STEPS:
        message = f"one step of {variant} takes {flops_per_step:,} FLOPs, and the budget is {flops:,.0f}"
        valid = f"≥ {flops_per_step:,}, ≤ {MAX_STEPS * flops_per_step:.3g}"
        raise SpecError(
            Problem(code="out-of-range", path="budget.flops", location=location, message=message, valid=valid)
        )
    return steps


def budget_cuts(budget: Budget, spec: Mapping[str, Any], baseline: Mapping[str, Any]) -> dict[str, Any]:
    """Return the limit that the budget sets in a resolved spec, by key; empty where it is the same for all variants.

    Steps that a budget of tokens pays for differ from the baseline's only where the tokens of a step do.
    """
    cuts = {key: get_path(spec, key) for unit, key in CUT_KEYS.items() if unit in budget}
    return {key: value for key, value in cuts.items() if "tokens" not in budget or value != get_path(baseline, key)}
