"""The knob of every variant is turned until it has as much as the baseline.

A budget of operations as steps: how many of them each variant, as it is built, can take.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from paribus.errors import Problem, SpecError
from paribus.planning.identity import ComponentCode
from paribus.planning.match_search import BudgetMatch, solve
from paribus.planning.time_matches import match_key
from paribus.planning.variants import Spec, Specs, resolve
from paribus.registry import Index
from paribus.specs.paths import get_path
from paribus.specs.reading_cache import ReadingCache
from paribus.specs.tree import value_text
from paribus.storage.store import Trial
from paribus.studies.budgets import FlopsPerStep, steps_for
from paribus.studies.designs import BASELINE, Change, Variant
from paribus.studies.options import TIME
from paribus.studies.study import Study

Count = Callable[[Spec], int]  # parameters or operations of a resolved spec
FindTimeMatch = Callable[[str, str], BudgetMatch | None]
"""What was found by measuring: by a key of the variant beside its baseline, and the code behind both."""


def match_variants(
    study: Study,
    kept: Mapping[str, Variant],
    resolved: dict[str, Specs],
    index: Index,
    count: Count | None,
    solved: FindTimeMatch | None,
) -> dict[str, BudgetMatch]:
    """Turns the knob of every variant until it costs what the baseline costs; `resolved` is changed in place.

    It is counted at the stage that the metric is of, and turned in all of them, so that they fit together. On time it
    is turned to what was measured; a variant that was not is left as it is, and out of what is told.
    """
    match = study.match
    if match is None:
        return {}
    decides = study.metric.stage
    base, code = resolved[BASELINE][decides], ComponentCode(index)
    target = None
    found: dict[str, BudgetMatch] = {}
    for variant in (each for each in kept.values() if each.name != BASELINE):
        own = resolved[variant.name][decides]
        start = matched_value(own, match.by, study)
        if match.on == TIME:
            codes = f"{code.hash(base)} {code.hash(own)}"
            known = solved(match_key(base, own, match.by), codes) if solved is not None else None
            if known is None:
                continue
            found[variant.name] = known
        else:
            assert count is not None, "a study that matches needs something to count with"
            target = count(base) if target is None else target
            counted = _counter(study, variant, index, count)
            found[variant.name] = solve(
                counted, target, whole=isinstance(start, int), start=float(start), path=match.by, on=match.on
            )
        resolved[variant.name] = resolve(study, variant, index, [(match.by, found[variant.name].value)])
    return found


def untimed_trials(study: Study, matched: Mapping[str, BudgetMatch], every: Sequence[Trial]) -> dict[str, Trial]:
    """A trial of each variant that is still to be matched on time, as it is written."""
    if study.match is None or study.match.on != TIME:
        return {}
    left: dict[str, Trial] = {}
    for trial in every:
        if trial.variant not in (BASELINE, *matched) and trial.stage == study.metric.stage:
            left.setdefault(trial.variant, trial)
    return left


def _counter(study: Study, variant: Variant, index: Index, count: Count) -> Callable[[float], int]:
    known: dict[float, int] = {}
    by = study.match.by if study.match else ""

    def counted(value: float) -> int:
        if value not in known:
            known[value] = count(resolve(study, variant, index, [(by, value)])[study.metric.stage])
        return known[value]

    return counted


def matched_value(spec: Spec, dotted: str, study: Study) -> float | int:
    """Where a knob is now."""
    value = get_path(spec, dotted)
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        above, _, name = dotted.rpartition(".")
        there = get_path(spec, above) if above else spec
        missing = not isinstance(there, Mapping) or name not in there
        found = f"there is no `{dotted}`" if missing else f"`{dotted}` is {value_text(value)}"
        what = f"{found} in the base, so it cannot be turned"
        where = study.location(("match", "by"))
        raise SpecError(
            Problem(code="no-knob", path="match.by", location=where, message=what, valid="a number: feedforward.expand")
        )
    return value


def has_flops_budget(study: Study) -> bool:
    """Whether some budget of the study is one of operations."""
    return any("flops" in (stage.budget or study.budget) for stage in study.stages)


def resolve_with_budget(
    study: Study,
    variant: Variant,
    index: Index,
    more: Sequence[Change],
    spend: FlopsPerStep | None,
    memory: ReadingCache | None = None,
) -> Specs:
    """The specs of a variant as `resolve` has them, with as many steps as a budget of operations is worth."""
    specs = resolve(study, variant, index, more, memory)
    if not has_flops_budget(study):
        return specs
    assert spend is not None, "a budget of operations needs something to count with"
    steps = {}
    for stage in study.stages:
        budget = stage.budget or study.budget
        if "flops" in budget:
            where = study.location(("stages", stage.names[0], "budget") if stage.budget else ("budget",))
            whose = f"{variant.name} in {stage.name}" if stage.name else variant.name
            steps[stage.name] = steps_for(budget["flops"], spend(specs[stage.name]), variant=whose, location=where)
    return resolve(study, variant, index, more, memory, steps)
