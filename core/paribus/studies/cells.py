"""The cells of a design as specs: which variants a study keeps, which it leaves out, and what is wrong with any."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final, final

from paribus.errors import ParibusError, Problem
from paribus.registry import Index
from paribus.specs.memory import Memory
from paribus.studies.designs import BASELINE, DESIGNS, Variant, baseline
from paribus.studies.excluding import Excluding, idle
from paribus.studies.identity import Spelling
from paribus.studies.settings import Excluded
from paribus.studies.study import Study
from paribus.studies.trials import Specs, lineage, resolve

NEVER: Final = ("unknown-component", "plugin-failed")  # what no other value of a product could make valid


@final
@dataclass(frozen=True)
class Cells:
    """What a study's variants come to."""

    resolved: dict[str, Specs] = field(default_factory=dict)  # changed in place, where a knob is turned
    kept: dict[str, Variant] = field(default_factory=dict)
    excluded: list[Excluded] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)  # each once: the base's own are those of every variant
    spelling: Spelling = field(default_factory=Spelling)  # of the specs, for whoever names their trials


def cells_of(
    study: Study, index: Index, variants: Sequence[Variant] = (), resolve: Callable[..., Specs] = resolve
) -> Cells:
    """Every variant of the design, or of those that are given, resolved."""
    variants = variants or [baseline(study.design, study.varied), *DESIGNS[study.design](study.varied)]
    memory = Memory()
    twins: dict[tuple[str, ...], str] = {}
    found = Cells()
    excluding = Excluding(study.exclude)
    for variant in variants:
        try:
            specs = resolve(study, variant, index, memory=memory)
        except ParibusError as error:
            hopeless = [problem for problem in error.problems if problem.code in NEVER]
            refused = "" if variant.chosen or hopeless else "; ".join(problem.what for problem in error.problems)
            if (why := excluding.why(variant, None) or refused) and not hopeless:
                found.excluded.append(Excluded(variant.name, why))
            else:
                found.problems.extend(error.problems if variant.chosen else hopeless)
            continue
        if why := excluding.why(variant, specs[study.metric.stage]):
            found.excluded.append(Excluded(variant.name, why))
            continue
        line = tuple(map(found.spelling.spec, lineage(study, specs)))
        twin = twins.get(line)
        if twin == BASELINE:
            found.excluded.append(Excluded(variant.name, f"the same spec as {twin}: it would change nothing", twin))
        elif twin is not None:
            found.excluded.append(Excluded(variant.name, f"the same spec as {twin}: it is run once", twin))
        elif variant.name in found.resolved:
            found.problems.append(_alike(study, variant))
        else:
            found.resolved[variant.name], found.kept[variant.name], twins[line] = specs, variant, variant.name
    found.problems.extend([*excluding.unused(study.where), *idle(study, found.excluded)])
    found.problems[:] = dict.fromkeys(found.problems)
    return found


def _alike(study: Study, variant: Variant) -> Problem:
    """Names are cut where they are long: what they leave out may be all that tells two variants apart."""
    what = f"two variants that differ are both called `{variant.name}`"
    where = study.written(variant.changes[0][0])
    return Problem(
        code="one-name", path="vary", where=where, what=what, valid="variants that differ in their beginning"
    )
