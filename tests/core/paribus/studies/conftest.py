"""A trial so small that its steps take milliseconds, over a corpus of the tests' own."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest

from paribus.registry import Index, Registry, index, installed
from paribus.specs.guard import plain
from paribus.specs.resolve import resolved
from paribus.studies.plan import Plan, plan
from paribus.studies.store import Trial
from paribus.studies.study import study_of

SENTENCES = ("The cat sat on the mat. It was warm. ", "A dog ran by. The cat woke up and left. ", "Then it rained. ")

MakeSpec = Callable[..., dict[str, Any]]


@pytest.fixture(scope="session")
def registry() -> Registry:
    return installed()


@pytest.fixture(scope="session")
def known() -> Index:
    return index()


@pytest.fixture(scope="session")
def grid(known: Index) -> Callable[..., Plan]:
    """Plans a grid over a text that nobody reads: `grid(vary=..., exclude=[...])`."""

    def planned(**said: Any) -> Plan:
        common = {"base": "encoder-tiny", "design": "grid", "seeds": 1, "budget": {"steps": 10}}
        read = study_of("mine", plain({**common, "metric": {"name": "val/mlm/loss"}, **said}, "study"), known)
        return plan(read, known, fingerprint=lambda spec: "text")

    return planned


@pytest.fixture(scope="session")
def tiny(registry: Registry, tmp_path_factory: pytest.TempPathFactory) -> MakeSpec:
    """Makes a resolved spec: `tiny(seed=1, steps=8)`, with whatever else is given put over it."""
    folder = tmp_path_factory.mktemp("corpus")
    for number in range(20):
        text = "".join(SENTENCES[(number * each) % 3] for each in range(1, 9))
        (folder / f"{number}.txt").write_text(f"{number}. {text}")
    base = resolved(
        "encoder-tiny",
        "dims.width=16", "dims.layers=1", "dims.heads=2", "dims.length=16", "dropout=0.1",
        "data.batch=4", "data.validation=8", "tokenizer=bytes", "objective=clm", "topology=decoder",
        "corpus={name: text, path: ['" + str(folder) + "/*.txt']}", "trainer.max_steps=8",
        registry=registry,
    )  # fmt: skip

    def make(*, seed: int = 0, steps: int = 8, **over: Any) -> dict[str, Any]:
        spec = copy.deepcopy(base)
        spec["seed"] = seed
        spec["trainer"]["max_steps"] = steps
        return {**spec, **over}

    return make


@pytest.fixture(scope="session")
def trial(tiny: MakeSpec) -> Callable[..., Trial]:
    """Makes a trial of a study: `trial("base", 1, steps=8)`."""

    def make(variant: str = "base", seed: int = 0, **over: Any) -> Trial:
        spec = tiny(seed=seed, **over)
        return Trial(f"{variant}-{seed}", variant, seed, spec, {}, "code", "corpus")

    return make
