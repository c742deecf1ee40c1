"""A plan: every trial of a study, resolved, named and matched, before any of them runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, final

from paribus.errors import ParibusError, Problem, SpecError
from paribus.registry import Index
from paribus.specs.memory import Memory
from paribus.studies.designs import BASELINE, DESIGNS, Variant, size
from paribus.studies.identity import Code, Spelling, identity_of
from paribus.studies.match import Matched, solve
from paribus.studies.store import Trial
from paribus.studies.study import Study
from paribus.studies.trials import Fingerprint, Spec, Specs, at, lineage, resolve, trials_of

MOST_TRIALS: Final = 10_000

Count = Callable[[Spec], int]  # parameters or operations of a resolved spec


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
    trials: tuple[Trial, ...]  # seed by seed, so that an early stop leaves whole pairs; each once
    excluded: tuple[Excluded, ...]
    matched: Mapping[str, Matched]
    gone_through: Mapping[tuple[str, str], tuple[Trial, ...]]  # by variant and stage; variants may share trials

    def of(self, variant: str, stage: str | None = None) -> tuple[Trial, ...]:
        """A variant's trials of a stage, which is that of the metric unless another is named."""
        return self.gone_through[variant, self.study.metric.stage if stage is None else stage]

    def own(self, variant: str, stage: str) -> tuple[Trial, ...]:
        """Those of them that no variant before this one has as well."""
        return tuple(trial for trial in self.of(variant, stage) if trial.variant == variant)


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
    memory, spelling = Memory(), Spelling()
    resolved: dict[str, Specs] = {}
    twins: dict[tuple[str, ...], str] = {}
    kept: dict[str, Variant] = {}
    excluded: list[Excluded] = []
    problems: list[Problem] = []
    for variant in variants:
        try:
            specs = resolve(study, variant, index, memory=memory)
        except ParibusError as error:
            if variant.chosen:
                problems += error.problems
            else:
                excluded.append(Excluded(variant.name, "; ".join(problem.what for problem in error.problems)))
            continue
        line = tuple(map(spelling.spec, lineage(study, specs)))
        twin = twins.get(line)
        if twin == BASELINE:
            excluded.append(Excluded(variant.name, f"the same spec as {twin}: it would change nothing"))
        elif twin is not None:
            excluded.append(Excluded(variant.name, f"the same spec as {twin}: it is run once"))
        elif variant.name in resolved:
            problems.append(_alike(study, variant))
        else:
            resolved[variant.name], kept[variant.name], twins[line] = specs, variant, variant.name
    if problems:
        raise SpecError(*_once(problems))
    matched = _matched(study, kept, resolved, index, count, solved)
    there = trials_of(study, tuple(kept.values()), resolved, matched, index, fingerprint)
    first: dict[str, Trial] = {}
    for trial in there:
        first.setdefault(trial.identity, trial)
    through: dict[tuple[str, str], list[Trial]] = {}
    for trial in there:
        through.setdefault((trial.variant, trial.stage), []).append(first[trial.identity])
    gone_through = {key: tuple(found) for key, found in through.items()}
    return Plan(study, tuple(kept.values()), tuple(first.values()), tuple(excluded), matched, gone_through)


def _alike(study: Study, variant: Variant) -> Problem:
    """Names are cut where they are long: what they leave out may be all that tells two variants apart."""
    what = f"two variants that differ are both called `{variant.name}`"
    where = study.where(("vary", variant.changes[0][0]))
    return Problem(
        code="one-name", path="vary", where=where, what=what, valid="variants that differ in their beginning"
    )


def _once(problems: Sequence[Problem]) -> list[Problem]:
    """The base's own problems are those of every variant: each is told once."""
    return list(dict.fromkeys(problems))


def _refuse_explosion(study: Study, most: int) -> None:
    count = (size(study.design, study.vary, study.variants) + 1) * len(study.seeds) * len(study.stages)
    if count > most:
        axes = " x ".join(f"{key}: {len(values)}" for key, values in study.vary.items())
        axes += f" x stages: {len(study.stages)}" if len(study.stages) > 1 else ""
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
    resolved: dict[str, Specs],
    index: Index,
    count: Count | None,
    solved: Mapping[str, Matched] | None,
) -> dict[str, Matched]:
    """Turns the knob of every variant until it costs what the baseline costs; `resolved` is changed in place.

    It is counted at the stage that the metric is of, and turned in all of them, so that they fit together.
    """
    match = study.match
    if match is None:
        return {}
    assert count is not None or solved is not None, "a study that matches needs something to count with"
    decides = study.metric.stage
    target = count(resolved[BASELINE][decides]) if count is not None else 0
    found: dict[str, Matched] = {}
    for variant in kept.values():
        if variant.name == BASELINE:
            continue
        if solved is not None and variant.name in solved:
            found[variant.name] = solved[variant.name]
        else:
            assert count is not None
            start = _value_at(resolved[variant.name][decides], match.by, study)
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
            known[value] = count(resolve(study, variant, index, [(by, value)])[study.metric.stage])
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


def single(spec: Spec, index: Index, fingerprint: Fingerprint) -> Trial:
    """A spec by itself, as a trial of no study."""
    code, corpus = Code(index).behind(spec), fingerprint(dict(spec))
    return Trial(identity_of(spec, code, corpus), "alone", spec["seed"], spec, {}, code, corpus)
