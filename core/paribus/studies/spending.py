"""A budget of operations as steps: how many of them each variant, as it is built, can take."""

from __future__ import annotations

from collections.abc import Sequence

from paribus.registry import Index
from paribus.specs.memory import Memory
from paribus.studies.budgets import Spend, steps_for
from paribus.studies.designs import Change, Variant
from paribus.studies.study import Study
from paribus.studies.trials import Specs, resolve


def counts(study: Study) -> bool:
    """Whether some budget of the study is one of operations."""
    return any("flops" in (stage.budget or study.budget) for stage in study.stages)


def spent(
    study: Study,
    variant: Variant,
    index: Index,
    more: Sequence[Change],
    spend: Spend | None,
    memory: Memory | None = None,
) -> Specs:
    """The specs of a variant as `resolve` has them, with as many steps as a budget of operations is worth."""
    specs = resolve(study, variant, index, more, memory)
    if not counts(study):
        return specs
    assert spend is not None, "a budget of operations needs something to count with"
    steps = {}
    for stage in study.stages:
        budget = stage.budget or study.budget
        if "flops" in budget:
            where = study.where(("stages", stage.words[0], "budget") if stage.budget else ("budget",))
            whose = f"{variant.name} in {stage.name}" if stage.name else variant.name
            steps[stage.name] = steps_for(budget["flops"], spend(specs[stage.name]), variant=whose, where=where)
    return resolve(study, variant, index, more, memory, steps)
