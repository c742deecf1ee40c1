"""Seeded faults in components: each is found by its check, except the listed survivors."""

import ast
import importlib
import inspect
import json
import os
import re
import sys
import textwrap
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from tests.core.paribus.testing.seeded_faults import INDEPENDENT, KIT, NEWCOMER, Fault
from tests.core.paribus.testing.test_reference import REFERENCES

from paribus.errors import PluginError, SpecError
from paribus.registry import Registry
from paribus.testing import Report, examine
from paribus.testing.conformance import BUILD, CHECKS, REFERENCE, SCHEMA

HERE = Path(__file__).parent
GUIDE = Path(__file__).parents[4] / "docs" / "guide" / "write-a-plugin.md"
FOUND, MISSED = [fault for fault in KIT if fault.check], [fault for fault in KIT if fault.reason]
TRY_ALL = "?"  # the name of no check
CHECK_TESTS = ("component_checks", "data_checks", "forward_checks", "token_checks", "training_checks")
LONG_CHECKS = (
    "every option has an effect",
    "gradients match finite differences",
    "gradient reaches every parameter",
    "chunked decoding equals one pass",
)
Examine = Callable[..., Report]


def unchanged_component(source: str, registry: Registry) -> Any:
    """Return the class that a fault changes."""
    if source == "by_hand":
        return execute_module("by_hand", (HERE / "by_hand.py").read_text(), HERE / "by_hand.py")["ByHand"]
    return registry.get(*source.split(".", 1))


def execute_module(name: str, text: str, file: Path) -> dict[str, Any]:
    """Execute text as a module; return its names."""
    module = ModuleType(name)
    module.__file__ = str(file)
    sys.modules[name] = module
    exec(compile(text, str(file), "exec"), vars(module))
    return vars(module)


@pytest.fixture
def examine_fault(components: Registry, monkeypatch: pytest.MonkeyPatch) -> Iterator[Examine]:
    """Return a function that applies a fault and runs some checks, or all."""

    def examine_fault(fault: Fault, only: list[str] | None) -> Report:
        reference = REFERENCES[fault.component] if only == [REFERENCE] else None
        if ":" in fault.source:
            with monkeypatch.context() as patched:
                for owner, name, value in faulty_functions(fault):
                    patched.setattr(owner, name, value)
                return examine(fault.component, registry=components, only=only, reference=reference)
        original = unchanged_component(fault.source, components)
        file = Path(inspect.getfile(original))
        faulty = execute_module("faulty", fault.apply(file.read_text()), file)[original.__name__]
        return examine(faulty, registry=components, only=only, reference=reference)

    yield examine_fault
    for name in ("by_hand", "faulty"):
        sys.modules.pop(name, None)


def function_source(fault: Fault) -> tuple[Any, str, Any, str]:
    """Return the owner, the name, the value and the source of the function that a fault changes."""
    module_name, path = fault.source.split(":")
    module = importlib.import_module(module_name)
    *class_names, name = path.split(".")
    owner: Any = getattr(module, class_names[0]) if class_names else module
    original = inspect.getattr_static(owner, name)
    function: Any = original.fget if isinstance(original, property) else original
    return owner, name, original, textwrap.dedent(inspect.getsource(function))


def faulty_functions(fault: Fault) -> Iterator[tuple[Any, str, Any]]:
    """Yield every module or class that contains the function, with its name and the faulty function."""
    owner, name, original, source = function_source(fault)
    module = sys.modules[fault.source.split(":")[0]]
    names: dict[str, Any] = {}
    code = compile(f"from __future__ import annotations\n{fault.apply(source)}", str(module.__file__), "exec")
    exec(code, vars(module), names)
    if owner is not module:
        return (yield owner, name, names[name])
    for importer in [loaded for key, loaded in sys.modules.items() if key.startswith("paribus")]:
        if vars(importer).get(name) is original:
            yield importer, name, names[name]


def first_of_each_check(faults: Iterable[Fault]) -> Iterator[Any]:
    """Yield the faults; all but the first of each check and slot are slow tests, and all of launchers.

    Of a check that takes a second, the first of each slot is a thorough test, except that of the first slot.
    """
    seen = set()
    for fault in faults:
        slot = fault.component.split(".")[0]
        marks = []
        if (fault.check, slot) in seen or slot == "launcher":
            marks = [pytest.mark.slow]
        elif fault.check in LONG_CHECKS and fault.check in seen:
            marks = [pytest.mark.thorough]
        yield pytest.param(fault, marks=marks, id=str(fault))
        seen |= {fault.check, (fault.check, slot)}


@pytest.mark.parametrize("fault", list(first_of_each_check(FOUND)))
def test_fault_is_found_by_its_check(fault: Fault, examine_fault: Examine) -> None:
    if fault.check == "schema is valid":  # the plugin is rejected when it is loaded
        with pytest.raises(PluginError, match="never reads its option"):
            examine_fault(fault, [])
        return
    report = examine_fault(fault, None if fault.check == TRY_ALL else [fault.check])
    assert [finding.check for finding in report.findings] == [fault.check], str(report)


@pytest.mark.slow
@pytest.mark.parametrize("fault", MISSED, ids=str)
def test_survivor_passes_all_checks(fault: Fault, examine_fault: Examine) -> None:
    report = examine_fault(fault, None)
    assert report.ok, f"a check finds this fault: {report}"


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # a fault may leave a process
@pytest.mark.parametrize("fault", INDEPENDENT, ids=str)
def test_independent_fault_is_found_as_recorded(fault: Fault, examine_fault: Examine) -> None:
    if path := os.environ.get("PARIBUS_FAULT_RESULTS"):  # `make measure-faults`
        with Path(path).open("a") as results:
            results.write(f"{json.dumps([str(fault), first_failing_check(fault, examine_fault)])}\n")
        return
    if fault.reason:
        pytest.skip("no check finds it, as recorded; make measure-faults tries all checks")
    assert first_failing_check(fault, examine_fault, [fault.check]) == fault.check


def first_failing_check(fault: Fault, examine_fault: Examine, only: list[str] | None = None) -> str:
    """Return the first check that fails, "" if none does; the author's reference comes last, if the test has one."""
    try:
        findings = examine_fault(fault, only).findings
    except (PluginError, SpecError):  # the plugin is rejected when it is loaded
        return SCHEMA
    if not findings and only is None and fault.component in REFERENCES:
        findings = examine_fault(fault, [REFERENCE]).findings
    return findings[0].check if findings else ""


def test_every_fault_changes_its_source_once(components: Registry) -> None:
    for fault in (*KIT, *INDEPENDENT):
        if ":" in fault.source:
            fault.apply(function_source(fault)[-1])
        else:
            fault.apply(Path(inspect.getfile(unchanged_component(fault.source, components))).read_text())


def test_every_fault_names_a_check_or_a_reason() -> None:
    for fault in (*KIT, *INDEPENDENT, *NEWCOMER):
        assert fault.reason or fault.check in {SCHEMA, BUILD, *CHECKS}, f"{fault}: unknown check {fault.check!r}"


def test_faults_of_others_are_found_as_the_guide_states() -> None:
    checks = [fault.check for fault in INDEPENDENT if fault.check]
    by_reference = checks.count(REFERENCE)
    stated = f"seeded {len(INDEPENDENT)} more; it finds {len(checks)}, and {by_reference} of these only with a"
    assert stated in " ".join(GUIDE.read_text().split())


@pytest.mark.slow
def test_reference_attention_conforms(components: Registry) -> None:
    report = examine(unchanged_component("by_hand", components), registry=components)
    assert report.ok, str(report)
    assert report.skipped == (
        "attention weights match their declaration",
        "kernels agree",
        "converted weights keep the output",
    )


def reported_fault_tests() -> list[str]:
    """Return the tests of checks that contain a fault of their own and assert that it is reported."""
    is_reported = re.compile(r"_(is|are)_reported")
    return [
        node.name
        for name in CHECK_TESTS
        for node in ast.parse((HERE / f"test_{name}.py").read_text()).body
        if isinstance(node, ast.FunctionDef)
        and is_reported.search(node.name)
        and {"failure_of"} & {argument.arg for argument in node.args.args}
    ]


def test_at_least_95_percent_of_faults_are_found_as_the_guide_states(record_property: Callable[..., None]) -> None:
    found_count = sum(fault.check != REFERENCE for fault in FOUND) + len(reported_fault_tests())
    count = found_count + len(MISSED)
    record_property("faults found", f"{found_count} of {count}")
    print(f"the kit finds {found_count} of {count} seeded faults; not found:")  # noqa: T201  # the test reports the count
    for fault in MISSED:
        print(f"  {fault}: {fault.reason}")  # noqa: T201  # and the survivors
    assert found_count / count >= 0.95
    statement = re.search(r"more than (\d+) faults .* all but (\d+)\.", " ".join(GUIDE.read_text().split()))
    assert statement is not None
    assert count > int(statement[1])
    assert len(MISSED) == int(statement[2])


def test_faults_are_distinct() -> None:
    for faults in (FOUND, MISSED, INDEPENDENT, NEWCOMER):
        assert len({str(fault) for fault in faults}) == len(faults)
        assert len({(fault.source, *fault.changes) for fault in faults}) == len(faults)
