"""Selection of components, models and checks, and the report."""

import json
from collections.abc import Callable
from typing import Annotated, Any

import pytest
import torch
from tests.fixtures.problems import raises_problem

from paribus import Cost, Norm, PluginError, Range, SpecError
from paribus.registry import Registry
from paribus.testing import Finding, NotConformingError, Report, conform, examine
from paribus.testing.conformance import ARCHITECTURE, CHECKS, OUTSIDE_MODELS

Factory = Callable[..., Any]


def test_unregistered_class_is_tested_under_a_placeholder_name(feedforward: Factory, components: Registry) -> None:
    report = conform(feedforward(), registry=components, only=["feed-forward treats tokens separately"])
    assert report.topic == "feedforward.under-test"
    assert report.passed == ("schema is valid", "feed-forward treats tokens separately")
    assert report.models == 3


def test_installed_class_is_tested_under_its_registered_name(components: Registry) -> None:
    report = conform(components.get("norm", "rmsnorm"), registry=components, only=["norm treats tokens separately"])
    assert report.topic == "norm.rmsnorm"


def test_error_contains_every_failed_check(feedforward: Factory, components: Registry) -> None:
    mixing = feedforward(forward=lambda self, x: (x.cumsum(1), None), cost=lambda self, load: Cost(1))
    with pytest.raises(NotConformingError, match=r"does not conform: 2 of 3 checks fail") as raised:
        conform(
            mixing, registry=components, only=["feed-forward treats tokens separately", "FLOPs match their declaration"]
        )
    assert [finding.check for finding in raised.value.report.findings] == [
        "feed-forward treats tokens separately",
        "FLOPs match their declaration",
    ]
    assert "\n  feed-forward treats tokens separately (encoder-tiny): the output at position 1 of 5" in str(
        raised.value
    )


def test_component_that_cannot_be_built_is_reported_once(feedforward: Factory, components: Registry) -> None:
    def init(self: Any, shape: Any) -> None:
        raise RuntimeError("no memory")

    report = examine(feedforward(__init__=init), registry=components)
    assert [finding.check for finding in report.findings] == ["models can be built"]
    assert "RuntimeError: no memory (" in report.findings[0].message


@pytest.mark.thorough
def test_wrong_return_type_is_reported_once_for_all_checks(feedforward: Factory, components: Registry) -> None:
    report = examine(feedforward(forward=lambda self, x: x), registry=components)
    assert len(report.findings) > 15
    lines = str(report).splitlines()
    assert len(lines) == 2
    assert f"feed-forward treats tokens separately and {len(report.findings) - 1} other checks (" in lines[1]
    assert ".forward`: expected the return type tuple[Tensor, Tensor | None], got Tensor" in lines[1]


@pytest.mark.thorough
def test_error_names_the_value_of_the_option_that_causes_it(feedforward: Factory, components: Registry) -> None:
    def init(self: Any, shape: Any, *, group: Annotated[int, "size", Range(1)] = 2) -> None:
        torch.nn.Module.__init__(self)
        self.group, self.weight = group, torch.nn.Parameter(torch.ones(shape.width, shape.width))

    def forward(self: Any, x: torch.Tensor) -> Any:
        return (x @ self.weight).unflatten(-1, (-1, self.group)).flatten(-2), None

    report = examine(
        feedforward(__init__=init, forward=forward), registry=components, only=["every option has an effect"]
    )
    message = report.findings[0].message
    assert message.startswith("RuntimeError: unflatten: ")
    assert "), with `group=" in message
    assert message.endswith("expected a SpecError for values that are not valid")


def test_component_that_no_model_accepts_is_reported_with_the_reason(attention: Factory, components: Registry) -> None:
    unusable = attention(traits={"residual": False, "causal": True})
    report = examine(unusable, registry=components)
    assert not report.ok
    assert report.findings[0].message.startswith("the rules reject the component in every model: encoder-tiny: ")
    assert "does not return the model width" in report.findings[0].message


def test_given_spec_replaces_the_presets(components: Registry) -> None:
    base = {"preset": "encoder-tiny", "dims.width": 8, "dims.layers": 1}
    report = conform(
        "norm.rmsnorm",
        registry=components,
        base=base,
        only=["no access to future tokens", "norm treats tokens separately"],
    )
    assert report.skipped == ("no access to future tokens",)
    assert report.models >= 2  # and one for each kind of placement


def test_invalid_schema_is_an_error(component_class: Factory, components: Registry) -> None:
    def init(self: Any, width: int, *, eps=1.0) -> None:  # type: ignore[no-untyped-def]  # the fault under test
        self.eps = eps

    with raises_problem(PluginError, "plugin-failed", "eps"):
        conform(component_class(Norm, {"__init__": init, "forward": lambda self, x: x}), registry=components)


def test_class_of_no_slot_is_an_error(components: Registry) -> None:
    with pytest.raises(TypeError, match="Cost fills no slot; valid: a subclass of one of topology, embedding"):
        conform(Cost, registry=components)


def test_unknown_component_is_an_error(components: Registry) -> None:
    with raises_problem(SpecError, "unknown-component", "attention", "gqaa"):
        conform("attention.gqaa", registry=components)


def test_unknown_check_is_an_error(components: Registry) -> None:
    with pytest.raises(ValueError, match='unknown check "colour"; valid: schema is valid, models can be built, '):
        examine("norm.none", registry=components, only=["colour"])


def test_component_outside_models_is_tested_without_one(components: Registry) -> None:
    for slot in OUTSIDE_MODELS:
        for name in components.index.entries[slot]:
            report = examine(f"{slot}.{name}", registry=components, only=[])
            assert report == Report(f"{slot}.{name}", ("schema is valid",))
            assert str(report).endswith("conforms: 1 checks pass")


def test_report_can_be_saved_as_json() -> None:
    report = Report(
        "norm.x",
        ("schema is valid",),
        ("kernels agree",),
        (Finding("repeated passes are equal", "gpt-tiny", "2 tokens differ"),),
        2,
    )
    assert json.loads(json.dumps(report.to_json()))["findings"] == [
        {"check": "repeated passes are equal", "model": "gpt-tiny", "message": "2 tokens differ"}
    ]
    assert str(Finding("schema is valid", "", "no annotation")) == "schema is valid: no annotation"


def test_every_check_has_a_summary_of_one_sentence() -> None:
    for name, check in CHECKS.items():
        assert check.summary.endswith("."), name
        assert check.slots, name
    assert {slot for check in CHECKS.values() for slot in check.slots} >= set(ARCHITECTURE)
