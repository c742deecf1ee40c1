"""`conform(component)`: run the conformance checks of a slot on a component."""

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
from paribus.testing.host_models import Case, base_specs, host_models
from paribus.testing.results import DOES_NOT_APPLY, Finding, NotConformingError, Report, Verdict

UNDER_TEST = "under-test"
SCHEMA_ONLY_SLOTS = frozenset({"launcher"})  # no model contains these: only their schema is read


def conform(
    component: type[Any] | str,
    *,
    registry: Registry | None = None,
    base: Source | None = None,
    only: Collection[str] | None = None,
) -> Report:
    """Run the checks of a component; raise `NotConformingError` if any fails.

    `component` is a class or the name of an installed component: `conform("attention.gqa")`. The checks run in small
    models with neighbours of every kind. `base` is a spec to use instead of the tiny presets. `only` selects checks by
    the names that `paribus conform COMPONENT` lists.
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
    """Run the checks of a component and return a report that includes the failures."""
    unknown = [name for name in only or () if name not in CHECKS]
    if unknown:
        raise ValueError(f'unknown check "{unknown[0]}"; valid: {join_names(CHECKS, limit=len(CHECKS))}')
    registry, slot, name = _resolve_component(component, registry or installed())
    case = Case(registry, registry.index.find(slot, name), base_specs(base, registry))
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with torch.no_grad():
            return _run_checks(
                case, CHECKS if only is None else {name: CHECKS[name] for name in CHECKS if name in only}
            )
    finally:
        torch.set_num_threads(threads)


def _resolve_component(component: type[Any] | str, registry: Registry) -> tuple[Registry, str, str]:
    """Return a registry that contains the component, with its slot and name there."""
    if isinstance(component, str):
        slot, _, name = component.partition(".")
        registry.get(slot, name)  # raises an error that lists the valid names
        return registry, slot, name
    for (slot, name), claimants in registry.index.claims.items():
        if len(claimants) == 1 and registry.get(slot, name) is component:
            return registry, slot, name
    slots = [slot for slot in SLOTS if issubclass(component, slot_class(slot))]
    if not slots:
        raise TypeError(f"{component.__qualname__} fills no slot; valid: a subclass of one of {join_names(SLOTS)}")
    return registry.with_components(**{slots[0]: {UNDER_TEST: component}}), slots[0], UNDER_TEST


def _run_checks(case: Case, checks: Mapping[str, Check]) -> Report:
    if case.entry.slot in SCHEMA_ONLY_SLOTS:
        return Report(case.topic, ("schema",))
    case.host_models.extend(host_models(case))
    if not case.host_models:
        message = "no model accepts the component: " + "; ".join(case.rejections)
        return Report(case.topic, findings=(Finding("construction", "", message),))
    unbuilt = _build_models(case)
    if unbuilt is not None:
        return Report(case.topic, ("schema",), findings=(unbuilt,), models=len(case.host_models))
    passed, skipped = ["schema", "construction"], list[str]()
    findings: list[Finding] = []
    for name, check in checks.items():
        if case.entry.slot in check.slots:
            result = _run_check(case, name, check)
            if isinstance(result, Finding):
                findings.append(result)
            else:
                (skipped if result is DOES_NOT_APPLY else passed).append(name)
    return Report(case.topic, tuple(passed), tuple(skipped), tuple(findings), len(case.host_models))


def _build_models(case: Case) -> Finding | None:
    """Build every model, so that a component that cannot be built is reported once."""
    for cell in case.host_models:
        try:
            case.small_model(cell)
        except Exception as error:
            return Finding("construction", cell.label, summarize_error(error))
    return None


def _run_check(case: Case, name: str, check: Check) -> Finding | Verdict:
    """Return the first counterexample, or HOLDS or DOES_NOT_APPLY."""
    verdict: Verdict = DOES_NOT_APPLY
    for cell in check.select_models(case.host_models):
        try:
            result = check.run(case, cell)
        except Exception as error:  # a component that raises does not conform; other checks continue
            result = summarize_error(error)
        if result:
            return Finding(name, cell.label, result)
        verdict = result if verdict is DOES_NOT_APPLY else verdict
    return verdict
