"""Conformance checks of every installed component; a new component is included automatically."""

from collections.abc import Iterator
from typing import Any

import pytest

from paribus.registry import Registry, installed
from paribus.testing import conform

LARGE_SLOTS = {  # slots with many components, whose checks take seconds; only these components are tried each time
    "attention": {"mha", "gqa", "restricted", "linear"},
    "feedforward": {"mlp", "glu"},
    "objective": {"mlm", "clm", "seq2seq"},
    "position": {"rope", "alibi", "learned", "none"},
}


def topics() -> Iterator[Any]:
    """Yield the names of all components; those left out of LARGE_SLOTS are slow tests."""
    for slot, entries in installed().index.entries.items():
        for name in entries:
            is_slow = name not in LARGE_SLOTS.get(slot, entries)
            yield pytest.param(f"{slot}.{name}", marks=[pytest.mark.slow] if is_slow else [])


def test_the_components_tried_each_time_exist() -> None:
    for slot, names in LARGE_SLOTS.items():
        assert names <= installed().index.entries[slot].keys()


@pytest.mark.parametrize("topic", list(topics()))
def test_installed_component_conforms(topic: str, components: Registry) -> None:
    report = conform(topic, registry=components)
    assert report.topic == topic
    assert "schema is valid" in report.passed
