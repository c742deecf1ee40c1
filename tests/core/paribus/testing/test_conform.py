"""Every component that is installed does what it declares: a new one is tested with no further edit."""

import pytest

from paribus.registry import Registry, installed
from paribus.testing import conform

TOPICS = [f"{slot}.{name}" for slot, entries in installed().index.entries.items() for name in entries]


@pytest.mark.parametrize("topic", TOPICS)
def test_it_does_what_it_declares(topic: str, components: Registry) -> None:
    report = conform(topic, registry=components)
    assert report.topic == topic
    assert "schema" in report.passed
