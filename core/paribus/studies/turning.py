"""The knob of every variant is turned until it has as much as the baseline."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from paribus.errors import Problem, SpecError
from paribus.registry import Index
from paribus.studies.designs import BASELINE, Variant
from paribus.studies.match import Matched, solve
from paribus.studies.study import Study
from paribus.studies.trials import Spec, Specs, at, resolve

Count = Callable[[Spec], int]  # parameters or operations of a resolved spec


def matched_of(
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
                counted, target, whole=isinstance(start, int), start=float(start), path=match.by, on=match.on
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
