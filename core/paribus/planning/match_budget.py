"""Matching: change an option of every variant until it costs what the baseline costs, in parameters, FLOPs or time.

Parameters and FLOPs are counted, and a bisection finds the value. Matches on time are measured by a run and saved in
the store. They stay as they are, like the trials that used them; delete the file of a match to measure it again.
Budgets of FLOPs become steps here, too.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from paribus.errors import Problem, SpecError
from paribus.evidence.provenance import processor_name
from paribus.planning.identity import ComponentCode
from paribus.planning.settings import BudgetMatch, TimeMeasurement
from paribus.planning.variants import Spec, Specs, resolve
from paribus.registry import Index
from paribus.specs.resolve import ReadingCache
from paribus.specs.tree import get_path, value_text
from paribus.storage.atomic import digest_json
from paribus.storage.store import Store, Trial
from paribus.studies.budgets import FlopsPerStep, steps_for
from paribus.studies.designs import BASELINE, Change, Variant
from paribus.studies.study import Study
from paribus.studies.study_keys import TIME

FOLDER: Final = "matching"
_NOT_IN_A_STEP: Final = {"data": ("validation", "evaluations"), "trainer": ("max_steps", "max_time")}
"""Options that no training step depends on."""
Count = Callable[[Spec], int]  # parameters, FLOPs or bytes of a resolved spec
FindTimeMatch = Callable[[str, str], BudgetMatch | None]
"""Returns the measured match of a key (see `match_key`) and the code of both specs."""
MIN_VALUE: Final = 1.0 / 64
MAX_VALUE: Final = 1024.0
MAX_STEPS: Final = 60  # of the bisection
MAX_WHOLE: Final = 2**24  # of an option with whole numbers
MAX_CHOICES: Final = 256  # of an option with few valid values
CANNOT_MATCH: Final = "cannot-match"

CountAt = Callable[[float], int]  # count of a variant with a value of the matched option


def solve(count: CountAt, target: int, *, whole: bool, start: float, path: str, on: str = "") -> BudgetMatch:
    """Return the value at which `count`, which must grow with it, is nearest to `target`.

    Args:
        whole: whether the option takes whole numbers
        start: the current value, which is kept where it matches already
        path: the option, for messages
        on: the name of the counted cost, for messages
    """
    start = int(start) if whole else start
    if target == 0:
        message = f"the baseline has no {on or 'such cost'} (0), so variants cannot match it"
        raise SpecError(Problem(code=CANNOT_MATCH, path="match.on", message=message, valid="a cost above 0"))
    if count(start) == target:
        return BudgetMatch(start, target, target)
    try:
        return _bisect(count, target, whole=whole, start=start, path=path, on=on)
    except SpecError as error:
        if not whole or error.problems[0].code == CANNOT_MATCH:
            raise
        # key-value heads must divide the heads: few values, and not evenly spaced
        choices = [value for value in range(1, MAX_CHOICES) if _is_valid(count, value)]
    return min((BudgetMatch(it, count(it), target) for it in choices), key=lambda match: abs(match.count - target))


def _bisect(count: CountAt, target: int, *, whole: bool, start: float, path: str, on: str) -> BudgetMatch:
    """Return the match of an option with any number, or with evenly spaced whole numbers."""
    low: float
    high: float
    low, high, step = _lattice(count, target, int(start)) if whole else (MIN_VALUE, MAX_VALUE, 0)
    _check_effect(count, low, high, path, on)
    if count(low) > target:
        raise SpecError(
            Problem(
                code=CANNOT_MATCH,
                path=path,
                message=f"even at {low:g} this variant has {count(low):,}, and the baseline has {target:,}",
                valid="another option under `match.by`, or no match",
            )
        )
    for _ in range(MAX_STEPS):
        middle = low + (high - low) // step // 2 * step if whole else (low + high) / 2
        if middle in (low, high):
            break
        if count(middle) <= target:
            low = middle
        else:
            high = middle
    best = min((low, high), key=lambda value: abs(count(value) - target))
    return BudgetMatch(_shortest(count, best, whole), count(best), target)


def _check_effect(count: CountAt, low: float, high: float, path: str, on: str) -> None:
    """Raise an error for an option that does not change the count."""
    if count(low) == count(high):
        message = f"`{path}` does not change the {on or 'count'}: it is {count(low):,} at {low:g} and at {high:g}"
        valid = "another option under `match.by`, or another `match.on`"
        raise SpecError(Problem(code=CANNOT_MATCH, path="match.by", message=message, valid=valid))


def _lattice(count: CountAt, target: int, start: int) -> tuple[int, int, int]:
    """Return the limits of the search among whole numbers, and the spacing of the valid ones.

    A width is a multiple of the heads, and even with rotary positions: the spacing is found by trying.
    """
    step = next((step for step in range(1, start + 1) if _is_valid(count, start + step, start + 2 * step)), 1)
    low = (start - 1) % step + 1
    if any(_is_valid(count, value) for value in range(1, low)):
        raise SpecError(Problem(code="uneven-values", message="the valid values are not evenly spaced"))
    high = start + step
    while count(high) <= target and high < MAX_WHOLE:
        high = low + 2 * (high - low)
    return low, high, step


def _is_valid(count: CountAt, *values: int) -> bool:
    try:
        for value in values:
            count(value)
    except SpecError:
        return False
    return True


def _shortest(count: CountAt, value: float, whole: bool) -> float:
    """Return the shortest decimal with the same count, so that a spec stays readable."""
    if whole:
        return int(value)
    for digits in range(1, 12):
        short = round(value, digits)
        if count(short) == count(value):
            return short
    return value


def match_variants(
    study: Study,
    variants: Mapping[str, Variant],
    resolved: dict[str, Specs],
    index: Index,
    count: Count | None,
    find_time_match: FindTimeMatch | None,
) -> dict[str, BudgetMatch]:
    """Match every variant with the baseline, and replace its specs in `resolved`.

    The cost is counted at the stage of the metric, and the option is changed in all stages, so that they fit together.
    A variant whose match on time was not measured yet stays as it is, and is not in the result.
    """
    match = study.match
    if match is None:
        return {}
    stage = study.metric.stage
    baseline, code = resolved[BASELINE][stage], ComponentCode(index)
    target = None
    matched: dict[str, BudgetMatch] = {}
    for name, variant in variants.items():
        if name == BASELINE:
            continue
        spec = resolved[name][stage]
        start = matched_value(spec, match.by, study)
        if match.on == TIME:
            codes = f"{code.hash(baseline)} {code.hash(spec)}"
            key = match_key(baseline, spec, match.by)
            time_match = find_time_match(key, codes) if find_time_match is not None else None
            if time_match is None:
                continue
            matched[name] = time_match
        else:
            assert count is not None, "a study with a match needs a count"
            target = count(baseline) if target is None else target
            counted = _cached_count(study, variant, index, count)
            is_whole = isinstance(start, int)
            matched[name] = solve(counted, target, whole=is_whole, start=float(start), path=match.by, on=match.on)
        resolved[name] = resolve(study, variant, index, [(match.by, matched[name].value)])
    return matched


def untimed_trials(study: Study, matched: Mapping[str, BudgetMatch], trials: Sequence[Trial]) -> dict[str, Trial]:
    """Return a trial of each variant that is not matched on time yet, as the variant is written."""
    if study.match is None or study.match.on != TIME:
        return {}
    untimed: dict[str, Trial] = {}
    for trial in trials:
        if trial.variant not in (BASELINE, *matched) and trial.stage == study.metric.stage:
            untimed.setdefault(trial.variant, trial)
    return untimed


def _cached_count(study: Study, variant: Variant, index: Index, count: Count) -> Callable[[float], int]:
    """Return the count of a variant as a function of the matched option's value."""
    counts: dict[float, int] = {}
    key = study.match.by if study.match else ""

    def counted(value: float) -> int:
        if value not in counts:
            counts[value] = count(resolve(study, variant, index, [(key, value)])[study.metric.stage])
        return counts[value]

    return counted


def matched_value(spec: Spec, key: str, study: Study) -> float | int:
    """Return the current value of the option under `match.by`, which must be a number."""
    value = get_path(spec, key)
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        parent, _, name = key.rpartition(".")
        options = get_path(spec, parent) if parent else spec
        is_missing = not isinstance(options, Mapping) or name not in options
        message = f'unknown option "{key}"' if is_missing else f"expected a number for `{key}`, got {value_text(value)}"
        location = study.location(("match", "by"))
        valid = "an option with a number: feedforward.expand"
        raise SpecError(Problem(code="not-numeric", path="match.by", location=location, message=message, valid=valid))
    return value


# --- budgets of FLOPs ---


def has_flops_budget(study: Study) -> bool:
    """Return whether any budget of the study is in FLOPs."""
    return any("flops" in (stage.budget or study.budget) for stage in study.stages)


def resolve_with_budget(
    study: Study,
    variant: Variant,
    index: Index,
    changes: Sequence[Change],
    flops_per_step: FlopsPerStep | None,
    memory: ReadingCache | None = None,
) -> Specs:
    """Return the resolved specs of a variant, with the steps that a budget of FLOPs pays for."""
    specs = resolve(study, variant, index, changes, memory)
    if not has_flops_budget(study):
        return specs
    assert flops_per_step is not None, "a budget of FLOPs needs a count"
    steps = {}
    for stage in study.stages:
        budget = stage.budget or study.budget
        if "flops" in budget:
            _check_frozen_steps(specs[stage.name])
            location = study.location(("stages", stage.names[0], "budget") if stage.budget else ("budget",))
            label = f"{variant.name} in {stage.name}" if stage.name else variant.name
            flops = flops_per_step(specs[stage.name])
            steps[stage.name] = steps_for(budget["flops"], flops, variant=label, location=location)
    return resolve(study, variant, index, changes, memory, steps)


def _check_frozen_steps(spec: Mapping[str, Any]) -> None:
    """Reject steps that differ in FLOPs, of which a budget of FLOPs counts one for all."""
    if (spec.get("freeze") or {}).get("steps") is not None:
        message = "the steps before and after it take different FLOPs, and the budget is in FLOPs"
        valid = "null, or a budget in steps, tokens or seconds"
        raise SpecError(Problem(code="does-not-fit", path="freeze.steps", message=message, valid=valid))


# --- matches on time ---


def match_key(baseline: Mapping[str, Any], spec: Mapping[str, Any], by: str) -> str:
    """Return the name of a match on time: a digest of both specs as far as a step depends on them."""
    return digest_json([_spec_of_a_step(baseline), _spec_of_a_step(spec), by])


def _spec_of_a_step(spec: Mapping[str, Any]) -> dict[str, Any]:
    """Return the spec without options that a longer study, or one with more seeds, may change."""
    options = {key: value for key, value in spec.items() if key not in ("seed", "evaluate", "measure")}
    for key, names in _NOT_IN_A_STEP.items():
        options[key] = {name: value for name, value in (spec.get(key) or {}).items() if name not in names}
    if isinstance(spec.get("from"), Mapping):
        options["from"] = {key: value for key, value in spec["from"].items() if key != "trial"}
    return options


def match_path(store: Store, key: str) -> Path:
    """Return the file of a match on time."""
    return store.root / FOLDER / f"{key}.json"


def read_time_match(store: Store, key: str, code: str) -> BudgetMatch | None:
    """Return a saved match on time; `code` is the current code of both specs."""
    document = store.document(FOLDER, f"{key}.json")
    if document is None:
        return None
    with suppress(KeyError, TypeError, ValueError, AttributeError):
        return _time_match(document, code)
    return None


def _time_match(document: Mapping[str, Any], code: str) -> BudgetMatch | None:
    low, high = document["interval"]
    machine = document["machine"]
    changes = []
    if machine["device"] == "cpu" and machine["name"] != processor_name():
        changes.append(f"this machine is another: {processor_name()}")
    if document["code"] != code:
        changes.append("the code has changed")
    timing = TimeMeasurement(
        float(document["ratio"]),
        -math.inf if low is None else float(low),
        math.inf if high is None else float(high),
        float(document["twin"]),
        int(document["rounds"]),
        str(machine["name"]),
        datetime.fromtimestamp(document["ended"], UTC).date().isoformat(),
        tuple(changes),
    )
    value = document["value"]
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(timing.ratio):
        return None
    baseline, variant = document["nanoseconds"]
    return BudgetMatch(value, int(variant), int(baseline), timing)
