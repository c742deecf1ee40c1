"""What a variant comes to: its spec at each stage, and the trials that follow from it.

The cells of a design as specs: which variants a study keeps, which it leaves out, and what is wrong with any.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final, final

from paribus.errors import ParibusError, Problem
from paribus.planning.identity import CanonicalCache, ComponentCode, SeededIdentity
from paribus.planning.match_search import BudgetMatch
from paribus.planning.settings import Excluded
from paribus.registry import Index
from paribus.specs.check import check
from paribus.specs.paths import get_path
from paribus.specs.reading_cache import ReadingCache
from paribus.specs.tree import Tree
from paribus.storage.saved_model import reading
from paribus.storage.store import Trial
from paribus.studies.budgets import Budget, budget_changes, budget_cuts
from paribus.studies.designs import BASELINE, DESIGNS, Change, Variant, baseline, effective_changes
from paribus.studies.parse_vary import ExclusionFilter, idle_levels
from paribus.studies.stages import Stage, key_in_stage
from paribus.studies.study import Study, put_at

Spec = dict[str, Any]
Specs = dict[str, Spec]  # of one variant, by the name of the stage
Fingerprint = Callable[[Spec], str]  # of a resolved spec's corpus


def resolve(
    study: Study,
    variant: Variant,
    index: Index,
    more: Sequence[Change] = (),
    memory: ReadingCache | None = None,
    steps: Mapping[str, int] = MappingProxyType({}),
) -> Specs:
    """The resolved specs of a variant with the study's first seed, one for each stage; trials are still to be named.

    `steps` says for how many a budget of operations is enough, by stage.
    """
    specs: Specs = {}
    for stage in study.stages:
        tree = Tree(
            study.base.data, dict(study.base.locations), list(study.base.problems)
        )  # what is put goes into copies
        stage.put(tree)
        for key, value in (*variant.changes, *more):
            here = key_in_stage(key, stage, study.stages)
            if here is not None:
                put_at(tree, here, value, study.location_of(key))
        _spend(study, tree, stage.budget or study.budget, steps.get(stage.name))
        if stage.parent:
            tree.data = {**tree.data, "from": {"trial": "", **_read(stage, specs[stage.parent])}}
        specs[stage.name] = check(tree, index, memory)
    return specs


def _read(stage: Stage, before: Spec) -> dict[str, Any]:
    """What a stage has of the vocabulary of the one that it begins from."""
    return {"vocabulary": "new"} if stage.vocabulary == "new" else {"learned": reading(before)}


def lineage(study: Study, specs: Mapping[str, Spec]) -> list[Spec]:
    """The specs that the metric depends on: of its stage, of the one that this begins from, and so on."""
    stages = {stage.name: stage for stage in study.stages}
    name, found = study.metric.stage, [specs[study.metric.stage]]
    while name := stages[name].parent:
        found.append(specs[name])
    return found


def _spend(study: Study, tree: Tree, budget: Budget, steps: int | None) -> None:
    """The budget, and the study's first seed."""
    for key, value in budget_changes(budget, tree.data, steps):
        put_at(tree, key, value, study.location(("budget",)))
    put_at(tree, "seed", study.seeds[0], study.location(("seeds",)))


def build_trials(
    study: Study,
    variants: Sequence[Variant],
    resolved: Mapping[str, Specs],
    matched: Mapping[str, BudgetMatch],
    index: Index,
    fingerprint: Fingerprint,
    spelling: CanonicalCache | None = None,
) -> list[Trial]:
    """For each seed the trials of a stage, variant by variant; what begins from another follows it."""
    spelling, code = spelling or CanonicalCache(), ComponentCode(index)
    following = {
        stage.name: (*reference_keys(study.base.data), *reference_keys(stage.overrides.data)) for stage in study.stages
    }
    described = {
        (variant.name, stage.name): (code.hash(spec), fingerprint(spec))
        for variant in variants
        for stage in study.stages
        for spec in [resolved[variant.name][stage.name]]
    }
    sown = {
        (variant, stage): SeededIdentity(spelling, resolved[variant][stage], *described[variant, stage])
        for variant, stage in described
    }
    changed = {
        (variant.name, stage.name): _changes(study, variant, stage) for variant in variants for stage in study.stages
    }
    baseline = resolved.get(BASELINE, {})
    instead = {(name, stage): _instead(varied, baseline.get(stage, {})) for (name, stage), varied in changed.items()}
    found: list[Trial] = []
    for seed in study.seeds:
        there: dict[tuple[str, str], Trial] = {}
        for stage in study.stages:
            for variant in variants:
                here = (variant.name, stage.name)
                before = there[variant.name, stage.parent].identity if stage.parent else ""
                own: Spec = {"seed": seed}
                if before:
                    own["from"] = {**resolved[variant.name][stage.name]["from"], "trial": before}
                spec = {**resolved[variant.name][stage.name], **own}
                behind, corpus = described[here]
                trial = Trial(
                    sown[here].identity(**own),
                    variant.name,
                    seed,
                    spec,
                    {**changed[here], **_begun(stage, there, before)},
                    behind,
                    corpus,
                    _knobs(study, variant, stage, spec, matched, following[stage.name]),
                    stage.name,
                    before,
                    budget_values=budget_cuts(stage.budget or study.budget, spec),
                    baseline_values=instead[here],
                )
                there[here] = trial
                found.append(trial)
    return found


def _changes(study: Study, variant: Variant, stage: Stage) -> dict[str, Any]:
    """The values that the variant changes in the base at this stage."""
    aims = ((key_in_stage(key, stage, study.stages), value) for key, value in variant.changes)
    return effective_changes((key, value) for key, value in aims if key is not None)


def _begun(stage: Stage, there: Mapping[tuple[str, str], Trial], before: str) -> dict[str, Any]:
    """What it begins from, where that is not what the baseline does."""
    return {"from": {"trial": before}} if before and before != there[BASELINE, stage.parent].identity else {}


def _instead(varied: Mapping[str, Any], baseline: Spec) -> dict[str, Any]:
    """What the baseline has where a variant changes several things: each may then be held against it by itself."""
    return {key: found for key in varied if (found := get_path(baseline, key)) is not None} if len(varied) > 1 else {}


def _knobs(
    study: Study,
    variant: Variant,
    stage: Stage,
    spec: Spec,
    matched: Mapping[str, BudgetMatch],
    following: Sequence[str],
) -> dict[str, Any]:
    """What was turned to match a budget, and what follows a varied key by `${dims.width}`: none of it was varied."""
    knobs = {key: get_path(spec, key) for key in following}
    if study.match is not None and variant.name in matched:
        by = key_in_stage(study.match.by, stage, study.stages)
        if by is not None:
            knobs[by] = matched[variant.name].value
    return knobs


def matched_changes(study: Study, matched: Mapping[str, BudgetMatch], name: str) -> list[Change]:
    """The knob of a variant, where one was turned for it to match."""
    return [(study.match.by, matched[name].value)] if study.match is not None and name in matched else []


def reference_keys(value: Any, way: str = "") -> Iterator[str]:
    """The dotted keys whose values refer to others."""
    if isinstance(value, str) and "${" in value:
        yield way
    pairs = value.items() if isinstance(value, Mapping) else enumerate(value) if isinstance(value, list) else ()
    for key, item in pairs:
        yield from reference_keys(item, f"{way}.{key}" if way else str(key))


NEVER_VALID: Final = ("unknown-component", "plugin-failed")  # what no other value of a product could make valid


@final
@dataclass(frozen=True)
class ResolvedVariants:
    """What a study's variants come to."""

    resolved: dict[str, Specs] = field(default_factory=dict)  # changed in place, where a knob is turned
    variants: dict[str, Variant] = field(default_factory=dict)
    excluded: list[Excluded] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)  # each once: the base's own are those of every variant
    canonical: CanonicalCache = field(default_factory=CanonicalCache)  # of the specs, for whoever names their trials


def resolve_variants(
    study: Study, index: Index, variants: Sequence[Variant] = (), resolve: Callable[..., Specs] = resolve
) -> ResolvedVariants:
    """Every variant of the design, or of those that are given, resolved."""
    variants = variants or [baseline(study.design, study.varied), *DESIGNS[study.design](study.varied)]
    memory = ReadingCache()
    twins: dict[tuple[str, ...], str] = {}
    found = ResolvedVariants()
    excluding = ExclusionFilter(study.exclude)
    for variant in variants:
        try:
            specs = resolve(study, variant, index, memory=memory)
        except ParibusError as error:
            hopeless = [problem for problem in error.problems if problem.code in NEVER_VALID]
            refused = (
                "" if variant.is_explicit or hopeless else "; ".join(problem.message for problem in error.problems)
            )
            if (why := excluding.reason(variant, None) or refused) and not hopeless:
                found.excluded.append(Excluded(variant.name, why))
            else:
                found.problems.extend(error.problems if variant.is_explicit else hopeless)
            continue
        if why := excluding.reason(variant, specs[study.metric.stage]):
            found.excluded.append(Excluded(variant.name, why))
            continue
        line = tuple(map(found.canonical.spec, lineage(study, specs)))
        twin = twins.get(line)
        if twin == BASELINE:
            found.excluded.append(Excluded(variant.name, f"the same spec as {twin}: it would change nothing", twin))
        elif twin is not None:
            found.excluded.append(Excluded(variant.name, f"the same spec as {twin}: it is run once", twin))
        elif variant.name in found.resolved:
            found.problems.append(_alike(study, variant))
        else:
            found.resolved[variant.name], found.variants[variant.name], twins[line] = specs, variant, variant.name
    found.problems.extend(
        [*excluding.unused(study.location), *idle_levels(study.varied, study.design, found.excluded, study.location_of)]
    )
    found.problems[:] = dict.fromkeys(found.problems)
    return found


def _alike(study: Study, variant: Variant) -> Problem:
    """Names are cut where they are long: what they leave out may be all that tells two variants apart."""
    what = f"two variants that differ are both called `{variant.name}`"
    where = study.location_of(variant.changes[0][0])
    return Problem(
        code="one-name", path="vary", location=where, message=what, valid="variants that differ in their beginning"
    )
