"""Conformance checks of every installed component; a new component is included automatically."""

import pytest

from paribus.registry import Registry, installed
from paribus.testing import conform

TOPICS = [f"{slot}.{name}" for slot, entries in installed().index.entries.items() for name in entries]


@pytest.mark.parametrize("topic", TOPICS)
def test_installed_component_conforms(topic: str, components: Registry) -> None:
    report = conform(topic, registry=components)
    assert report.topic == topic
    assert "schema is valid" in report.passed
