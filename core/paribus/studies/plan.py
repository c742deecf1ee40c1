"""A plan: every trial of a study, resolved, named and matched, before any of them runs."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple, final

from paribus.errors import ParibusError, Problem, SpecError
from paribus.registry import Index
from paribus.specs.check import check
from paribus.specs.tree import Tree, copied
from paribus.studies.designs import BASELINE, DESIGNS, Change, Variant, size
from paribus.studies.identity import code_of, components_of, identity_of, unidentified
from paribus.studies.match import Matched, solve
from paribus.studies.store import Trial
from paribus.studies.study import Study, put_at

MOST_TRIALS: Final = 10_000

Spec = dict[str, Any]
Count = Callable[[Spec], int]  # parameters or operations of a resolved spec
Fingerprint = Callable[[Spec], str]  # of a resolved spec's corpus


class Excluded(NamedTuple):
    """A cell of the design that does not run, and why."""

    variant: str
    why: str


@final
@dataclass(frozen=True)
class Plan:
    """What a study comes to."""

    study: Study
    variants: tuple[Variant, ...]  # the baseline first
    trials: tuple[Trial, ...]  # seed by seed, so that an early stop leaves whole pairs
    excluded: tuple[Excluded, ...]
    matched: Mapping[str, Matched]

    def of(self, variant: str) -> list[Trial]:
        return [trial for trial in self.trials if trial.variant == variant]


def plan(
    study: Study,
    index: Index,
    *,
    fingerprint: Fingerprint,
    count: Count | None = None,
    most: int = MOST_TRIALS,
    solved: Mapping[str, Matched] | None = None,
) -> Plan:
    """Every trial, or one error that names what no variant can be. `count` is only asked where the study matches."""
    _refuse_explosion(study, most)
    variants = [Variant(BASELINE), *DESIGNS[study.design](study.vary, study.variants)]
    resolved: dict[str, Spec] = {}
    kept: dict[str, Variant] = {}
    excluded: list[Excluded] = []
    problems: list[Problem] = []
    for variant in variants:
        try:
            spec = resolve(study, variant, index)
        except ParibusError as error:
            if variant.chosen:
                problems += error.problems
            else:
                excluded.append(Excluded(variant.name, "; ".join(problem.what for problem in error.problems)))
            continue
        twin = next((name for name, other in resolved.items() if other == spec), None)
        if twin == BASELINE:
            excluded.append(Excluded(variant.name, f"the same spec as {twin}: it would change nothing"))
        elif twin is not None:
            excluded.append(Excluded(variant.name, f"the same spec as {twin}: it is run once"))
        elif variant.name in resolved:
            problems.append(_alike(study, variant))
        else:
            resolved[variant.name], kept[variant.name] = spec, variant
    if problems:
        raise SpecError(*_once(problems))
    matched = _matched(study, kept, resolved, index, count, solved)
    trials = tuple(_trials(study, tuple(kept.values()), resolved, matched, index, fingerprint))
    return Plan(study, tuple(kept.values()), trials, tuple(excluded), matched)


def _alike(study: Study, variant: Variant) -> Problem:
    """Names are cut where they are long: what they leave out may be all that tells two variants apart."""
    what = f"two variants that differ are both called `{variant.name}`"
    where = study.where(("vary", variant.changes[0][0]))
    return Problem(
        code="one-name", path="vary", where=where, what=what, valid="variants that differ in their beginning"
    )


def resolve(study: Study, variant: Variant, index: Index, more: Sequence[Change] = ()) -> Spec:
    """The resolved spec of a variant with the study's first seed."""
    tree = _copy(study.base)
    for key, value in (*variant.changes, *more):
        put_at(tree, key, value, study.where(("vary", key)))
    _spend(study, tree)
    return check(tree, index)


def _spend(study: Study, tree: Tree) -> None:
    """The budget as a number of steps."""
    steps = study.budget.get("steps")
    if "tokens" in study.budget:
        batch = (tree.data.get("data") or {}).get("batch", 32)
        length = (tree.data.get("dims") or {}).get("length", 1)
        if isinstance(batch, int) and isinstance(length, int):
            steps = max(1, math.ceil(study.budget["tokens"] / (batch * length)))
    if steps is not None:
        put_at(tree, "trainer.max_steps", steps, study.where(("budget",)))
    put_at(tree, "seed", study.seeds[0], study.where(("seeds",)))


def _copy(tree: Tree) -> Tree:
    return Tree(copied(tree.data), dict(tree.marks), list(tree.problems))


def _once(problems: Sequence[Problem]) -> list[Problem]:
    """The base's own problems are those of every variant: each is told once."""
    return list(dict.fromkeys(problems))


def _refuse_explosion(study: Study, most: int) -> None:
    count = (size(study.design, study.vary, study.variants) + 1) * len(study.seeds)
    if count > most:
        axes = " x ".join(f"{key}: {len(values)}" for key, values in study.vary.items())
        raise SpecError(
            Problem(
                code="too-many-trials",
                path="vary",
                where=study.where(("vary",)),
                what=f"this is {count:,} trials ({axes} x seeds: {len(study.seeds)})",
                valid=f"at most {most:,}, or --max-trials",
            )
        )


def _matched(
    study: Study,
    kept: Mapping[str, Variant],
    resolved: dict[str, Spec],
    index: Index,
    count: Count | None,
    solved: Mapping[str, Matched] | None,
) -> dict[str, Matched]:
    """Turns the knob of every variant until it costs what the baseline costs; `resolved` is changed in place."""
    match = study.match
    if match is None:
        return {}
    assert count is not None or solved is not None, "a study that matches needs something to count with"
    target = count(resolved[BASELINE]) if count is not None else 0
    found: dict[str, Matched] = {}
    for variant in kept.values():
        if variant.name == BASELINE:
            continue
        if solved is not None and variant.name in solved:
            found[variant.name] = solved[variant.name]
        else:
            assert count is not None
            start = _value_at(resolved[variant.name], match.by, study)
            counted = _counter(study, variant, index, count)
            found[variant.name] = solve(
                counted, target, whole=isinstance(start, int), start=float(start), path=match.by
            )
        resolved[variant.name] = resolve(study, variant, index, [(match.by, found[variant.name].value)])
    return found


def _counter(study: Study, variant: Variant, index: Index, count: Count) -> Callable[[float], int]:
    known: dict[float, int] = {}
    by = study.match.by if study.match else ""

    def counted(value: float) -> int:
        if value not in known:
            known[value] = count(resolve(study, variant, index, [(by, value)]))
        return known[value]

    return counted


def _value_at(spec: Spec, dotted: str, study: Study) -> float | int:
    value = at(spec, dotted)
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        what = f"`{dotted}` is {value!r} in the base, so it cannot be turned"
        where = study.where(("match", "by"))
        raise SpecError(
            Problem(code="no-knob", path="match.by", where=where, what=what, valid="a number: feedforward.expand")
        )
    return value


def _trials(
    study: Study,
    variants: Sequence[Variant],
    resolved: Mapping[str, Spec],
    matched: Mapping[str, Matched],
    index: Index,
    fingerprint: Fingerprint,
) -> Iterator[Trial]:
    followers = tuple(references(study.base.data))  # what follows a varied key by `${dims.width}` was not varied itself
    described = {name: (code_behind(spec, index), fingerprint(spec)) for name, spec in resolved.items()}
    for seed in study.seeds:
        for variant in variants:
            spec = {**resolved[variant.name], "seed": seed}
            code, corpus = described[variant.name]
            knobs = {key: at(spec, key) for key in followers}
            if study.match is not None and variant.name in matched:
                knobs[study.match.by] = matched[variant.name].value
            identity = identity_of(spec, code, corpus)
            yield Trial(identity, variant.name, seed, spec, dict(variant.changes), code, corpus, knobs)


def references(value: Any, way: str = "") -> Iterator[str]:
    """The dotted keys whose values refer to others."""
    if isinstance(value, str) and "${" in value:
        yield way
    pairs = value.items() if isinstance(value, Mapping) else enumerate(value) if isinstance(value, list) else ()
    for key, item in pairs:
        yield from references(item, f"{way}.{key}" if way else str(key))


def at(spec: Any, dotted: str) -> Any:
    """What stands at a dotted key, or nothing."""
    for key in dotted.split("."):
        if isinstance(spec, list) and key.isdecimal() and int(key) < len(spec):
            spec = spec[int(key)]
        else:
            spec = spec.get(key) if isinstance(spec, Mapping) else None
    return spec


def code_behind(spec: Mapping[str, Any], index: Index) -> str:
    """One hash of the code of all components that a spec names."""
    files = [index.find(slot, name).file for slot, name in components_of(spec, index)]
    return code_of(Path(file) for file in files) if all(files) else unidentified()


def single(spec: Mapping[str, Any], index: Index, fingerprint: Fingerprint) -> Trial:
    """A spec by itself, as a trial of no study."""
    code, corpus = code_behind(spec, index), fingerprint(dict(spec))
    return Trial(identity_of(spec, code, corpus), "alone", spec["seed"], spec, {}, code, corpus)
