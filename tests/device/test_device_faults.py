"""Faults that a CPU hides are found by the check of the conformance kit."""

from typing import Any

import pytest
from tests.device.device_faults import CORRECT, faults, norm

from paribus.testing import examine
from paribus_attention.multi_query import MultiQuery

pytestmark = pytest.mark.device
CHECK = "training runs on an accelerator"


@pytest.mark.parametrize(("component", "message"), [pytest.param(*fault, id=name) for name, *fault in faults()])
def test_the_check_finds_the_fault(component: type[Any], message: str) -> None:
    findings = examine(component, only=[CHECK]).findings
    assert [finding.check for finding in findings] == [CHECK]
    assert message in findings[0].message


@pytest.mark.parametrize(
    "component",
    [MultiQuery, *(pytest.param(norm(change), id=f"a norm with {name}") for name, change in CORRECT.items())],
)
def test_correct_components_pass(component: type[Any]) -> None:
    report = examine(component, only=[CHECK])
    assert report.ok, report
    assert CHECK in report.passed
