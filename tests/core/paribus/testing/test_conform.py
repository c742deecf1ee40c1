"""Conformance checks of every installed component; a new component is included automatically."""

import os
from collections.abc import Iterator
from typing import Any

import pytest

from paribus.registry import Registry, installed
from paribus.testing import examine

SEEDS = range(1, 21)

EACH_TIME = {
    "attention.mha",
    "corpus.text",
    "feedforward.mlp",
    "initialisation.normal",
    "measure.threshold",
    "norm.rmsnorm",
    "objective.clm",
    "optimizer.adafactor",
    "optimizer.adamw",
    "schedule.warmup-cosine",
    "tokenizer.bpe",
    "tokenizer.bytes",
    "topology.encoder",
}
"""A component of a slot, in which every check of the slot runs each time; those of other slots take longer."""

MAY_LACK_PACKAGES = {"corpus.datasets", "corpus.digits", "launcher.ray"}  # without which nothing is tested
LARGE_SLOTS: dict[str, set[str]] = {  # whose checks take seconds; these components are thorough tests, others slow ones
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
    """Yield the names of all components, tests of which run each time, in the gate, or in its rotating part."""
    for slot, entries in installed().index.entries.items():
        for name in entries:
            topic = f"{slot}.{name}"
            mark = pytest.mark.thorough if name in LARGE_SLOTS.get(slot, entries) else pytest.mark.slow
            yield pytest.param(topic, marks=[] if topic in EACH_TIME else [mark])


def test_the_components_tried_each_time_exist() -> None:
    entries = installed().index.entries
    for slot, names in LARGE_SLOTS.items():
        assert names <= entries[slot].keys()
    assert all(topic.split(".", 1)[1] in entries[topic.split(".")[0]] for topic in EACH_TIME)


@pytest.mark.few(6)
@pytest.mark.parametrize("topic", list(topics()))
def test_installed_component_conforms(topic: str, components: Registry) -> None:
    report = examine(topic, registry=components)
    assert not report.findings, str(report)
    assert report.ok or topic in MAY_LACK_PACKAGES, str(report)
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
    assert report.ok or (topic in MAY_LACK_PACKAGES and not report.findings), str(report)
