"""Conformance checks of every installed component; a new component is included automatically."""

import os
from collections.abc import Iterator
from typing import Any

import pytest

from paribus.registry import Registry, installed
from paribus.testing import conform, examine

SEEDS = range(1, 21)

LARGE_SLOTS: dict[str, set[str]] = {  # slots whose checks take seconds; only these components are tried each time
    "attention": {"mha", "linear"},
    "corpus": {"sections", "text"},
    "embedding": {"tokens"},
    "feedforward": {"mlp"},
    "launcher": set(),
    "measure": {"threshold"},
    "norm": {"rmsnorm"},
    "objective": {"clm", "seq2seq"},
    "placement": {"pre", "rezero"},
    "position": {"alibi", "learned"},
    "tokenizer": {"bpe", "bytes"},
    "topology": {"encoder", "two-stream"},
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


def seeded_topics() -> Iterator[Any]:
    """Yield each component with one of 20 seeds, or with all of them if PARIBUS_CONFORM_SEEDS is set (hours)."""
    topics = [f"{slot}.{name}" for slot, entries in installed().index.entries.items() for name in entries]
    for index, topic in enumerate(topics):
        yield from (
            (topic, seed) for seed in (SEEDS if "PARIBUS_CONFORM_SEEDS" in os.environ else (SEEDS[index % 20],))
        )


@pytest.mark.slow
@pytest.mark.parametrize(("topic", "seed"), list(seeded_topics()))
def test_installed_component_conforms_with_other_draws(topic: str, seed: int, components: Registry) -> None:
    report = examine(topic, registry=components, seed=seed)
    assert report.ok, str(report)
