"""How a component is found, tried, and reported on."""

import json
from collections.abc import Callable
from typing import Any

import pytest

from paribus import Cost, Norm, PluginError, SpecError
from paribus.registry import Registry
from paribus.testing import Finding, NotConformingError, Report, conform, examine
from paribus.testing.check_table import ARCHITECTURE, CHECKS
from paribus.testing.conformance import SCHEMA_ONLY_SLOTS

Faulty = Callable[..., Any]


def test_a_class_is_tried_under_a_name_of_its_own(feedforward: Faulty, components: Registry) -> None:
    report = conform(feedforward(), registry=components, only=["each row"])
    assert report.topic == "feedforward.under-test"
    assert report.passed == ("schema", "construction", "each row")
    assert report.models == 3


def test_a_class_that_is_installed_is_tried_under_the_name_it_has(components: Registry) -> None:
    report = conform(components.get("norm", "rmsnorm"), registry=components, only=["row by row"])
    assert report.topic == "norm.rmsnorm"


def test_what_fails_is_raised_with_every_counterexample(feedforward: Faulty, components: Registry) -> None:
    mixing = feedforward(forward=lambda self, x: (x.cumsum(1), None), cost=lambda self, load: Cost(1))
    with pytest.raises(NotConformingError, match=r"does not conform: 2 of 4 checks fail") as raised:
        conform(mixing, registry=components, only=["each row", "cost"])
    assert [finding.check for finding in raised.value.report.findings] == ["each row", "cost"]
    assert "\n  each row (encoder-tiny): row 1 of 5" in str(raised.value)


def test_a_component_that_cannot_be_built_is_told_of_once(feedforward: Faulty, components: Registry) -> None:
    def begin(self: Any, shape: Any) -> None:
        raise RuntimeError("no luck")

    report = examine(feedforward(__init__=begin), registry=components)
    assert [finding.check for finding in report.findings] == ["construction"]
    assert "RuntimeError: no luck (" in report.findings[0].message


def test_a_component_that_no_model_takes_is_told_why(attention: Faulty, components: Registry) -> None:
    lost = attention(traits={"residual": False, "causal": True})
    report = examine(lost, registry=components)
    assert not report.ok
    assert report.findings[0].message.startswith("no model accepts the component: encoder-tiny: ")
    assert "does not return the model width" in report.findings[0].message


def test_a_spec_of_the_authors_takes_the_place_of_the_presets(components: Registry) -> None:
    base = {"preset": "encoder-tiny", "dims.width": 8, "dims.layers": 1}
    report = conform("norm.rmsnorm", registry=components, base=base, only=["causality", "row by row"])
    assert report.skipped == ("causality",)
    assert report.models >= 2  # beside a placement of each other kind, too


def test_a_schema_that_cannot_be_read_is_an_error_for_its_author(filling: Faulty, components: Registry) -> None:
    def begin(self: Any, width: int, *, eps=1.0) -> None:  # type: ignore[no-untyped-def]  # the mistake
        self.eps = eps

    with pytest.raises(PluginError, match="option `eps` has no annotation"):
        conform(filling(Norm, {"__init__": begin, "forward": lambda self, x: x}), registry=components)


def test_a_class_that_fills_no_slot_is_refused(components: Registry) -> None:
    with pytest.raises(TypeError, match="Cost fills no slot; valid: a subclass of one of topology, embedding"):
        conform(Cost, registry=components)


def test_a_name_that_nobody_has_is_refused(components: Registry) -> None:
    with pytest.raises(SpecError, match='unknown attention "gqaa"'):
        conform("attention.gqaa", registry=components)


def test_a_check_that_there_is_not_is_refused(components: Registry) -> None:
    with pytest.raises(ValueError, match='unknown check "luck"; valid: moments'):
        examine("norm.none", registry=components, only=["luck"])


def test_what_has_no_place_in_a_model_is_read_and_no_more(components: Registry) -> None:
    for slot in SCHEMA_ONLY_SLOTS:
        for name in components.index.entries[slot]:
            assert examine(f"{slot}.{name}", registry=components) == Report(f"{slot}.{name}", ("schema",))


def test_a_report_is_data_as_well() -> None:
    report = Report("norm.x", ("schema",), ("order",), (Finding("batch", "gpt-tiny", "rows differ"),), 2)
    assert json.loads(json.dumps(report.to_json()))["findings"] == [
        {"check": "batch", "model": "gpt-tiny", "message": "rows differ"}
    ]
    assert str(Finding("schema", "", "wrong")) == "schema: wrong"


def test_every_check_says_what_it_holds_in_one_sentence() -> None:
    for name, check in CHECKS.items():
        first = (check.run.__doc__ or "").splitlines()[0]
        assert first.endswith("."), name
        assert check.slots, name
    assert {slot for check in CHECKS.values() for slot in check.slots} >= set(ARCHITECTURE)
