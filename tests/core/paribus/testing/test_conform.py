"""Conformance checks of every installed component; a new component is included automatically."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.fixtures import user_data

from paribus.registry import Registry, installed
from paribus.testing import examine

SEEDS = range(1, 21)

EACH_TIME = {
    "attention": {"mha"},
    "corpus": {"sections"},
    "embedding": {"tokens"},
    "initialisation": {"normal", "truncated"},
    "measure": {"span", "threshold"},
    "norm": {"layernorm"},
    "objective": {"clm"},
    "optimizer": {"adamw", "sgd"},
    "placement": {"pre"},
    "position": {"rope"},
    "schedule": {"constant", "halved", "inverse-sqrt", "polynomial", "trapezoid", "warmup-cosine"},
    "tokenizer": {"bpe", "bytes", "symbols", "wordpiece"},
    "topology": {"decoder", "encoder"},
}
"""Components in which every check of their slot runs each time."""

THOROUGH = {
    "attention.conv",
    "attention.gqa",
    "attention.linear",
    "corpus.copy",
    "corpus.text",
    "feedforward.glu",
    "feedforward.mlp",
    "launcher.local",
    "norm.rmsnorm",
    "norm.scalenorm",
    "objective.mlm",
    "objective.seq2seq",
    "optimizer.adafactor",
    "optimizer.lamb",
    "optimizer.stable-adamw",
    "placement.post",
    "placement.rezero",
    "position.alibi",
    "position.learned",
    "topology.two-stream",
}
"""Components that the gate tries each time; the others take turns (`make slow`)."""

MAY_LACK_PACKAGES = {"corpus.datasets", "corpus.digits", "launcher.ray"}  # without which nothing is tested


def topics() -> Iterator[Any]:
    """Yield the names of all components, tests of which run each time, in the gate, or in its rotating part."""
    for slot, entries in installed().index.entries.items():
        for name in entries:
            mark = pytest.mark.thorough if f"{slot}.{name}" in THOROUGH else pytest.mark.slow
            yield pytest.param(f"{slot}.{name}", marks=[] if name in EACH_TIME.get(slot, ()) else [mark])


def test_the_components_tried_each_time_exist() -> None:
    entries = installed().index.entries
    assert all(names <= entries[slot].keys() for slot, names in EACH_TIME.items())
    assert all(topic.split(".", 1)[1] in entries[topic.split(".")[0]] for topic in THOROUGH)


@pytest.fixture
def in_user_folder(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run a component that reads files of the user in a folder that has them."""
    if request.getfixturevalue("topic") in user_data.TOPICS:
        user_data.write_user_data(tmp_path)
        monkeypatch.chdir(tmp_path)


@pytest.mark.usefixtures("in_user_folder")
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
@pytest.mark.usefixtures("in_user_folder")
@pytest.mark.parametrize(("topic", "seed"), list(seeded_topics()))
def test_installed_component_conforms_with_other_draws(topic: str, seed: int, components: Registry) -> None:
    report = examine(topic, registry=components, seed=seed)
    assert report.ok or (topic in MAY_LACK_PACKAGES and not report.findings), str(report)
