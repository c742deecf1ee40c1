"""Variants of a study: their resolved specs at each stage, and the trials of these specs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final, final

from paribus.errors import ParibusError, Problem, SpecError
from paribus.planning.identity import CanonicalCache, ComponentCode, SeededIdentity
from paribus.planning.settings import BudgetMatch, Excluded
from paribus.program.command import SEED
from paribus.program.input_files import ProgramCode
from paribus.registry import Index
from paribus.specs.diff import covered
from paribus.specs.resolve import ReadingCache, check
from paribus.specs.tree import Tree, flatten, get_path
from paribus.storage.saved_model import reading
from paribus.storage.store import Trial
from paribus.studies.budgets import budget_changes, budget_cuts
from paribus.studies.designs import BASELINE, DESIGNS, Change, Variant, baseline, effective_changes
from paribus.studies.parse_vary import ExclusionFilter, idle_levels
from paribus.studies.stages import SINGLE_STAGE, Stage, key_in_stage
from paribus.studies.study import Study, put_at

Spec = dict[str, Any]
Specs = dict[str, Spec]  # resolved specs of one variant, by the name of the stage
Fingerprint = Callable[[Spec], str]  # of the corpus of a resolved spec

NEVER_VALID: Final = ("unknown-component", "plugin-failed")  # problems that no other cell of a product can avoid


def resolve(
    study: Study,
    variant: Variant,
    index: Index,
    changes: Sequence[Change] = (),
    memory: ReadingCache | None = None,
    steps: Mapping[str, int] = MappingProxyType({}),
) -> Specs:
    """Return the resolved specs of a variant with the study's first seed, one for each stage.

    Args:
        changes: made after those of the variant
        memory: shares the reading of equal values between variants
        steps: by stage, the steps that a budget of FLOPs pays for
    """
    if study.program is not None:
        return {SINGLE_STAGE[0].name: _program_spec(study, (*variant.changes, *changes))}
    specs: Specs = {}
    for stage in study.stages:
        tree = Tree(
            study.base.data, dict(study.base.locations), list(study.base.problems)
        )  # `put` copies what it changes
        stage.put(tree)
        keys = {key: key_in_stage(key, stage, study.stages) for key, _ in (*variant.changes, *changes)}
        for key, value in (*variant.changes, *changes):
            if (stage_key := keys[key]) is not None:
                put_at(tree, stage_key, value, study.location_of(key))
        budget = budget_changes(stage.budget or study.budget, tree, steps.get(stage.name))
        _check_budget_keys(study, variant, keys, budget)
        _put_budget(study, tree, budget)
        if stage.parent:
            tree.data = {**tree.data, "from": _source(study, variant, stage, specs[stage.parent])}
        specs[stage.name] = check(tree, index, memory)
    return specs


def _program_spec(study: Study, changes: Sequence[Change]) -> Spec:
    """Return the options of a program with the study's first seed."""
    tree = Tree(study.base.data, dict(study.base.locations))
    for key, value in changes:
        put_at(tree, key, value, study.location_of(key))
    put_at(tree, SEED, study.seeds[0], study.location(("seeds",)))
    return dict(tree.data)


def _source(study: Study, variant: Variant, stage: Stage, parent: Spec) -> dict[str, Any] | None:
    """Return what a stage starts from. A variant without the earlier stage has its tokenizer, and initial weights."""
    vocabulary = {"vocabulary": "new"} if stage.vocabulary == "new" else {"learned": reading(parent)}
    if all(key_in_stage(key, stage, study.stages) != "from" for key, _ in variant.changes):
        return {"trial": "", **vocabulary}
    return None if stage.vocabulary == "new" else vocabulary


def parent_stage(stage: Stage, spec: Spec) -> str:
    """Return the stage that a spec starts from; empty if it starts from initial weights."""
    return stage.parent if "trial" in (spec.get("from") or {}) else ""


def lineage(study: Study, specs: Mapping[str, Spec]) -> list[Spec]:
    """Return the specs that the metric depends on: that of its stage, of this stage's parent, and so on."""
    stages = {stage.name: stage for stage in study.stages}
    name, lineage = study.metric.stage, [specs[study.metric.stage]]
    while name := parent_stage(stages[name], specs[name]):
        lineage.append(specs[name])
    return lineage


def _put_budget(study: Study, tree: Tree, budget: Sequence[Change]) -> None:
    """Put the budget and the study's first seed into a spec."""
    for key, value in budget:
        put_at(tree, key, value, study.location(("budget",)))
    put_at(tree, "seed", study.seeds[0], study.location(("seeds",)))


def _check_budget_keys(
    study: Study, variant: Variant, keys: Mapping[str, str | None], budget: Sequence[Change]
) -> None:
    """Reject a variant that sets a key of the budget, which would replace its value."""
    for key, value in variant.changes:
        changed = [path for path, _ in flatten({keys[key]: value})] if keys[key] is not None else []
        overwritten = next((name for name, _ in budget if any(covered(path, [name]) for path in changed)), None)
        if overwritten is not None:
            message = f"`{overwritten}` follows from the study's budget, so that {variant.name} cannot set it"
            valid = f"a study without `budget`, and `{overwritten}` in its base; or variants without `{overwritten}`"
            location = study.location_of(key)
            raise SpecError(Problem(code="does-not-fit", path=key, location=location, message=message, valid=valid))


def build_trials(
    study: Study,
    variants: Sequence[Variant],
    resolved: Mapping[str, Specs],
    matched: Mapping[str, BudgetMatch],
    index: Index,
    fingerprint: Fingerprint,
    canonical: CanonicalCache | None = None,
) -> list[Trial]:
    """Return the trials of all seeds, seed by seed, stage by stage and variant by variant."""
    canonical = canonical or CanonicalCache()
    code_hashes = ComponentCode(index) if study.program is None else ProgramCode()
    references = {
        stage.name: (*reference_keys(study.base.data), *reference_keys(stage.overrides.data)) for stage in study.stages
    }
    code_and_corpus = {
        (variant.name, stage.name): (code_hashes.hash(spec), fingerprint(spec))
        for variant in variants
        for stage in study.stages
        for spec in [resolved[variant.name][stage.name]]
    }
    identities = {
        (variant, stage): SeededIdentity(canonical, resolved[variant][stage], *code_and_corpus[variant, stage])
        for variant, stage in code_and_corpus
    }
    changes = {
        (variant.name, stage.name): _stage_changes(study, variant, stage)
        for variant in variants
        for stage in study.stages
    }
    baseline_specs = resolved.get(BASELINE, {})
    baseline_values = {
        (variant, stage): _baseline_values(changed, baseline_specs.get(stage, {}))
        for (variant, stage), changed in changes.items()
    }
    trials: list[Trial] = []
    for seed in study.seeds:
        trials_of_seed: dict[tuple[str, str], Trial] = {}
        for stage in study.stages:
            for variant in variants:
                key = (variant.name, stage.name)
                parent = parent_stage(stage, resolved[variant.name][stage.name])
                parent_id = trials_of_seed[variant.name, parent].identity if parent else ""
                seeded: Spec = {"seed": seed}
                if parent_id:
                    seeded["from"] = {**resolved[variant.name][stage.name]["from"], "trial": parent_id}
                spec = {**resolved[variant.name][stage.name], **seeded}
                code, corpus = code_and_corpus[key]
                trial = Trial(
                    identities[key].identity(**seeded),
                    variant.name,
                    seed,
                    spec,
                    {**changes[key], **_changed_parent(stage, trials_of_seed, parent_id)},
                    code,
                    corpus,
                    _matched_values(study, variant, stage, spec, matched, references[stage.name]),
                    stage.name,
                    parent_id,
                    budget_values=budget_cuts(stage.budget or study.budget, spec, baseline_specs.get(stage.name, {})),
                    baseline_values=baseline_values[key],
                    components=code_hashes.components(resolved[variant.name][stage.name]),
                    effects=study.effects,
                    plugins=code_hashes.plugins(resolved[variant.name][stage.name]),
                )
                trials_of_seed[key] = trial
                trials.append(trial)
    return trials


def _stage_changes(study: Study, variant: Variant, stage: Stage) -> dict[str, Any]:
    """Return the values that a variant changes in the base at one stage."""
    stage_keys = ((key_in_stage(key, stage, study.stages), value) for key, value in variant.changes)
    return effective_changes((key, value) for key, value in stage_keys if key is not None)


def _changed_parent(stage: Stage, trials: Mapping[tuple[str, str], Trial], parent_id: str) -> dict[str, Any]:
    """Return the parent trial as a change, where it is not the baseline's."""
    is_changed = parent_id and parent_id != trials[BASELINE, stage.parent].identity
    return {"from": {"trial": parent_id}} if is_changed else {}


def _baseline_values(changes: Mapping[str, Any], spec: Spec) -> dict[str, Any]:
    """Return the baseline's values of several changes, so that each may be compared by itself."""
    values = {key: get_path(spec, key) for key in changes} if len(changes) > 1 else {}
    return {key: value for key, value in values.items() if value is not None}


def _matched_values(
    study: Study,
    variant: Variant,
    stage: Stage,
    spec: Spec,
    matched: Mapping[str, BudgetMatch],
    references: Sequence[str],
) -> dict[str, Any]:
    """Return the values that follow from a variant's changes: of the matched option, and of `${…}` references."""
    values = {key: get_path(spec, key) for key in references}
    if study.match is not None and variant.name in matched:
        key = key_in_stage(study.match.by, stage, study.stages)
        if key is not None:
            values[key] = matched[variant.name].value
    return values


def matched_changes(study: Study, matched: Mapping[str, BudgetMatch], name: str) -> list[Change]:
    """Return the change that matches a variant's budget, if there is one."""
    return [(study.match.by, matched[name].value)] if study.match is not None and name in matched else []


def reference_keys(data: Any) -> Iterator[str]:
    """Yield the dotted keys whose values refer to other keys: `${dims.width}`."""
    return (key for key, value in flatten(data) if isinstance(value, str) and "${" in value)


@final
@dataclass(frozen=True)
class ResolvedVariants:
    """Variants of a study with their specs, and those that are excluded or invalid."""

    resolved: dict[str, Specs] = field(default_factory=dict)  # by variant; matching a budget replaces specs
    variants: dict[str, Variant] = field(default_factory=dict)
    excluded: list[Excluded] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)  # each once, though every variant has those of the base
    canonical: CanonicalCache = field(default_factory=CanonicalCache)


def resolve_variants(
    study: Study, index: Index, variants: Sequence[Variant] = (), resolve: Callable[..., Specs] = resolve
) -> ResolvedVariants:
    """Resolve the given variants, or all of the design; exclude cells that are invalid or duplicates."""
    variants = variants or [baseline(study.design, study.varied), *DESIGNS[study.design](study.varied)]
    memory = ReadingCache()
    name_by_lineage: dict[tuple[str, ...], str] = {}
    result = ResolvedVariants()
    exclusions = ExclusionFilter(study.exclude)
    for variant in variants:
        try:
            specs = resolve(study, variant, index, memory=memory)
        except ParibusError as error:
            _add_invalid(result, variant, error.problems, exclusions.reason(variant, None))
            continue
        if reason := exclusions.reason(variant, specs[study.metric.stage]):
            result.excluded.append(Excluded(variant.name, reason))
            continue
        key = tuple(map(result.canonical.spec, lineage(study, specs)))
        twin = name_by_lineage.get(key)
        if twin is not None:
            effect = "it would change nothing" if twin == BASELINE else "it is run once"
            result.excluded.append(Excluded(variant.name, f"the same spec as {twin}: {effect}", twin))
        elif variant.name in result.resolved:
            result.problems.append(_duplicate_name(study, variant))
        else:
            result.resolved[variant.name], result.variants[variant.name] = specs, variant
            name_by_lineage[key] = variant.name
    result.problems.extend(exclusions.unused(study.location))
    result.problems.extend(idle_levels(study.varied, study.design, result.excluded, study.location_of))
    result.problems[:] = dict.fromkeys(result.problems)
    return result


def _add_invalid(result: ResolvedVariants, variant: Variant, problems: Sequence[Problem], exclusion: str) -> None:
    """Note an invalid variant: an invalid cell of a product is excluded, a listed variant is a problem."""
    fatal = [problem for problem in problems if problem.code in NEVER_VALID]
    reason = "" if variant.is_explicit or fatal else "; ".join(problem.message for problem in problems)
    if (exclusion or reason) and not fatal:
        result.excluded.append(Excluded(variant.name, exclusion or reason))
    else:
        result.problems.extend(problems if variant.is_explicit else fatal)


def _duplicate_name(study: Study, variant: Variant) -> Problem:
    """Return the problem of two variants whose names are equal after shortening."""
    message = f"two different variants are both called `{variant.name}`"
    location = study.location_of(variant.changes[0][0])
    valid = "variants that differ in their beginning"
    return Problem(code="duplicate-variant", path="vary", location=location, message=message, valid=valid)
