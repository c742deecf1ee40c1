"""`conform(component)`: all that its slot and its own declarations promise, held against what it does."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import torch

from paribus.errors import join_names
from paribus.hookspecs import SLOTS
from paribus.registry import Registry, installed
from paribus.registry.class_reader import slot_class
from paribus.registry.plugin_loading import summarize_error
from paribus.specs.load import Source
from paribus.testing.check_table import CHECKS, Check
from paribus.testing.host_models import Case, bases, cells
from paribus.testing.results import DOES_NOT_APPLY, Finding, NotConformingError, Report, Verdict

UNDER_TEST = "under-test"
UNTRIED = frozenset({"launcher"})  # what no model has: these are read and built, and no more


def conform(
    component: type[Any] | str,
    *,
    registry: Registry | None = None,
    base: Source | None = None,
    only: Collection[str] | None = None,
) -> Report:
    """Raises a `NotConformingError` with every check that fails, or reports which ones hold.

    `component` is a class, or the name of one that is installed: `conform("attention.gqa")`. It is tried in small
    models beside neighbours of every kind; `base` is a spec to put it in, where the tiny presets will not do; `only`
    names the checks to make, of `paribus conform COMPONENT`'s list.
    """
    report = examine(component, registry=registry, base=base, only=only)
    if not report.ok:
        raise NotConformingError(report)
    return report


def examine(
    component: type[Any] | str,
    *,
    registry: Registry | None = None,
    base: Source | None = None,
    only: Collection[str] | None = None,
) -> Report:
    """The same, with the failures in the report and nothing raised."""
    unknown = [name for name in only or () if name not in CHECKS]
    if unknown:
        raise ValueError(f'unknown check "{unknown[0]}"; valid: {join_names(CHECKS, limit=len(CHECKS))}')
    registry, slot, name = _found(component, registry or installed())
    case = Case(registry, registry.index.find(slot, name), bases(base, registry))
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with torch.no_grad():
            return _examined(case, CHECKS if only is None else {name: CHECKS[name] for name in CHECKS if name in only})
    finally:
        torch.set_num_threads(threads)


def _found(component: type[Any] | str, registry: Registry) -> tuple[Registry, str, str]:
    """A registry that has it, and what it is called there."""
    if isinstance(component, str):
        slot, _, name = component.partition(".")
        registry.get(slot, name)  # or an error that says what there is
        return registry, slot, name
    for (slot, name), claimants in registry.index.claims.items():
        if len(claimants) == 1 and registry.get(slot, name) is component:
            return registry, slot, name
    slots = [slot for slot in SLOTS if issubclass(component, slot_class(slot))]
    if not slots:
        raise TypeError(f"{component.__qualname__} fills no slot; valid: a subclass of one of {join_names(SLOTS)}")
    return registry.with_components(**{slots[0]: {UNDER_TEST: component}}), slots[0], UNDER_TEST


def _examined(case: Case, checks: Mapping[str, Check]) -> Report:
    if case.entry.slot in UNTRIED:
        return Report(case.topic, ("schema",))
    case.cells.extend(cells(case))
    if not case.cells:
        what = "no model takes it: " + "; ".join(case.refusals)
        return Report(case.topic, findings=(Finding("construction", "", what),))
    unbuilt = _built(case)
    if unbuilt is not None:
        return Report(case.topic, ("schema",), findings=(unbuilt,), models=len(case.cells))
    passed, skipped = ["schema", "construction"], list[str]()
    findings: list[Finding] = []
    for name, check in checks.items():
        if case.entry.slot in check.slots:
            found = _checked(case, name, check)
            if isinstance(found, Finding):
                findings.append(found)
            else:
                (skipped if found is DOES_NOT_APPLY else passed).append(name)
    return Report(case.topic, tuple(passed), tuple(skipped), tuple(findings), len(case.cells))


def _built(case: Case) -> Finding | None:
    """Builds every model, so that a component that cannot be built is told of once."""
    for cell in case.cells:
        try:
            case.specimen(cell)
        except Exception as error:
            return Finding("construction", cell.said, summarize_error(error))
    return None


def _checked(case: Case, name: str, check: Check) -> Finding | Verdict:
    """The first counterexample, of models in order; else whether the check applied to any."""
    verdict: Verdict = DOES_NOT_APPLY
    for cell in check.among(case.cells):
        try:
            found = check.run(case, cell)
        except Exception as error:  # a component that fails where it is asked does not conform; the others go on
            found = summarize_error(error)
        if found:
            return Finding(name, cell.said, found)
        verdict = found if verdict is DOES_NOT_APPLY else verdict
    return verdict
