"""Seeded faults in components: each is found by its check, except the listed survivors."""

import ast
import importlib
import inspect
import json
import os
import re
import runpy
import sys
import textwrap
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from paribus.errors import PluginError, SpecError
from paribus.registry import Registry
from paribus.testing import Report, examine
from paribus.testing.conformance import BUILD, CHECKS, REFERENCE, SCHEMA

HERE = Path(__file__).parent
GUIDE = Path(__file__).parents[4] / "docs" / "guide" / "write-a-plugin.md"
SEEDED = runpy.run_path(str(HERE / "seeded_faults.py"))
REFERENCES = runpy.run_path(str(HERE / "test_reference.py"))["REFERENCES"]
KILLED, SURVIVORS, INDEPENDENT = SEEDED["KILLED"], SEEDED["SURVIVORS"], SEEDED["INDEPENDENT"]
KILLED_BY_REFERENCE = tuple(
    SEEDED["Mutant"](*fault[:4], check=REFERENCE, component="".join(fault[4:]))
    for fault in SEEDED["SLOT_MUTANTS"]["REFERENCE_FAULTS"]
)
CHECK_TESTS = ("component_checks", "data_checks", "forward_checks", "token_checks", "training_checks")
LONG_CHECKS = (
    "every option has an effect",
    "gradients match finite differences",
    "gradient reaches every parameter",
    "chunked decoding equals one pass",
)
Examine = Callable[..., Report]


def mutant_id(mutant: Any) -> str:
    return f"{mutant.source}: {mutant.fault}"


def mutate(text: str, mutant: Any) -> str:
    count = text.count(mutant.original)
    assert count == 1, f"{mutant_id(mutant)}: expected `{mutant.original}` once in the source, got {count}"
    return text.replace(mutant.original, mutant.replacement)


def unchanged_component(source: str, registry: Registry) -> Any:
    """Return the class that a mutant changes."""
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
def examine_mutant(components: Registry, monkeypatch: pytest.MonkeyPatch) -> Iterator[Examine]:
    """Return a function that applies a mutant and runs some checks, or all."""

    def examine_mutant(mutant: Any, only: list[str] | None) -> Report:
        reference = REFERENCES[mutant.component or mutant.source] if only == [REFERENCE] else None
        if ":" in mutant.source:
            with monkeypatch.context() as patched:
                for owner, name, value in mutated_functions(mutant):
                    patched.setattr(owner, name, value)
                return examine(mutant.component, registry=components, only=only, reference=reference)
        original = unchanged_component(mutant.source, components)
        file = Path(inspect.getfile(original))
        mutated = execute_module("mutated", mutate(file.read_text(), mutant), file)[original.__name__]
        return examine(mutated, registry=components, only=only, reference=reference)

    yield examine_mutant
    for name in ("by_hand", "mutated"):
        sys.modules.pop(name, None)


def function_source(mutant: Any) -> tuple[Any, str, Any, str]:
    """Return the owner, the name, the value and the source of the function that a mutant changes."""
    module_name, path = mutant.source.split(":")
    module = importlib.import_module(module_name)
    *class_names, name = path.split(".")
    owner: Any = getattr(module, class_names[0]) if class_names else module
    original = inspect.getattr_static(owner, name)
    function: Any = original.fget if isinstance(original, property) else original
    return owner, name, original, textwrap.dedent(inspect.getsource(function))


def mutated_functions(mutant: Any) -> Iterator[tuple[Any, str, Any]]:
    """Yield every module or class that contains the function, with its name and the mutated function."""
    owner, name, original, source = function_source(mutant)
    module = sys.modules[mutant.source.split(":")[0]]
    names: dict[str, Any] = {}
    code = compile(f"from __future__ import annotations\n{mutate(source, mutant)}", str(module.__file__), "exec")
    exec(code, vars(module), names)
    if owner is not module:
        return (yield owner, name, names[name])
    for importer in [loaded for key, loaded in sys.modules.items() if key.startswith("paribus")]:
        if vars(importer).get(name) is original:
            yield importer, name, names[name]


def first_of_each_check(mutants: Iterable[Any]) -> Iterator[Any]:
    """Yield the mutants; all but the first of each check and slot are slow tests, and all of launchers.

    Of a check that takes a second, the first of each slot is a thorough test, except that of the first slot.
    """
    seen = set()
    for mutant in mutants:
        slot = (mutant.component or mutant.source).split(".")[0]
        marks = []
        if (mutant.check, slot) in seen or slot == "launcher":
            marks = [pytest.mark.slow]
        elif mutant.check in LONG_CHECKS and mutant.check in seen:
            marks = [pytest.mark.thorough]
        yield pytest.param(mutant, marks=marks, id=mutant_id(mutant))
        seen |= {mutant.check, (mutant.check, slot)}


@pytest.mark.parametrize("mutant", list(first_of_each_check([*KILLED, *KILLED_BY_REFERENCE])))
def test_fault_is_found_by_its_check(mutant: Any, examine_mutant: Examine) -> None:
    if mutant.check == "schema is valid":  # the plugin is rejected when it is loaded
        with pytest.raises(PluginError, match="never reads its option"):
            examine_mutant(mutant, [])
        return
    report = examine_mutant(mutant, [mutant.check])
    assert [finding.check for finding in report.findings] == [mutant.check], str(report)


@pytest.mark.slow
@pytest.mark.parametrize("mutant", SURVIVORS, ids=mutant_id)
def test_survivor_passes_all_checks(mutant: Any, examine_mutant: Examine) -> None:
    report = examine_mutant(mutant, None)
    assert report.ok, f"a check fails, so this mutant is no survivor: {report}"
    assert mutant.reason


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # a fault may leave a process
@pytest.mark.parametrize("mutant", INDEPENDENT, ids=mutant_id)
def test_independent_fault_is_found_as_recorded(mutant: Any, examine_mutant: Examine) -> None:
    if path := os.environ.get("PARIBUS_FAULT_RESULTS"):  # `make measure-faults`
        with Path(path).open("a") as results:
            results.write(f"{json.dumps([mutant_id(mutant), first_failing_check(mutant, examine_mutant)])}\n")
        return
    check = SEEDED["INDEPENDENT_RESULTS"][mutant_id(mutant)].get("check")
    if check is None:
        pytest.skip("no check finds it, as recorded; make measure-faults tries all checks")
    assert first_failing_check(mutant, examine_mutant, [check]) == check


def first_failing_check(mutant: Any, examine_mutant: Examine, only: list[str] | None = None) -> str:
    """Return the first check that fails, "" if none does; the author's reference comes last, if the test has one."""
    try:
        findings = examine_mutant(mutant, only).findings
    except (PluginError, SpecError):  # the plugin is rejected when it is loaded
        return SCHEMA
    if not findings and only is None and (mutant.component or mutant.source) in REFERENCES:
        findings = examine_mutant(mutant, [REFERENCE]).findings
    return findings[0].check if findings else ""


def test_every_fault_changes_its_source_once(components: Registry) -> None:
    for mutant in (*KILLED, *KILLED_BY_REFERENCE, *SURVIVORS, *INDEPENDENT):
        if ":" in mutant.source:
            mutate(function_source(mutant)[-1], mutant)
        else:
            mutate(Path(inspect.getfile(unchanged_component(mutant.source, components))).read_text(), mutant)


def test_every_independent_fault_has_a_result() -> None:
    results = SEEDED["INDEPENDENT_RESULTS"]
    assert results.keys() == {mutant_id(mutant) for mutant in INDEPENDENT}
    assert all(result.get("check") or result.get("reason") for result in results.values())
    checks = [result["check"] for result in results.values() if "check" in result]
    assert set(checks) <= {SCHEMA, BUILD, *CHECKS}
    stated = f"seeded {len(results)} more; it finds {len(checks)}, and {checks.count(REFERENCE)} of these only with a"
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
    found_count, missed = len(KILLED) + len(reported_fault_tests()), len(SURVIVORS)
    record_property("faults found", f"{found_count} of {found_count + missed}")
    print(f"the kit finds {found_count} of {found_count + missed} seeded faults; not found:")  # noqa: T201  # the test reports the count
    for mutant in SURVIVORS:
        print(f"  {mutant_id(mutant)}: {mutant.reason}")  # noqa: T201  # and the survivors
    assert found_count / (found_count + missed) >= 0.95
    statement = re.search(r"more than (\d+) faults .* all but (\d+)\.", " ".join(GUIDE.read_text().split()))
    assert statement is not None
    assert found_count + missed > int(statement[1])
    assert missed == int(statement[2])


def test_faults_are_distinct() -> None:
    mutants = [*KILLED, *KILLED_BY_REFERENCE]
    assert len({(mutant.source, mutant.original, mutant.replacement) for mutant in mutants}) == len(mutants)
    assert len({mutant_id(mutant) for mutant in mutants}) == len(mutants)
