"""What a timing pass measures: the same work for all contestants, and tensors that live as long as they should."""

from __future__ import annotations

import weakref
from typing import Any

import pytest

from paribus.planning.paired_ratio import FORWARD, GENERATION, TWIN
from paribus.registry import Registry, installed
from paribus.runner import time_groups as module
from paribus.runner.time_groups import time_groups
from paribus.specs.resolve import resolved

SMALL = ("dims.width=32", "dims.layers=2", "dims.heads=4", "dims.length=16", "data.batch=4")


@pytest.fixture(scope="module")
def registry() -> Registry:
    return installed()


def spec(registry: Registry, preset: str = "gpt-tiny", *overrides: str) -> dict[str, Any]:
    return resolved(preset, *SMALL, *overrides, registry=registry)


@pytest.mark.thorough
def test_models_of_a_timed_group_are_freed_before_the_next(registry: Registry, monkeypatch: pytest.MonkeyPatch) -> None:
    living: weakref.WeakSet[Steps] = weakref.WeakSet()
    counts: list[int] = []

    class Steps:
        tokens = 1

        def __init__(self, *_: object) -> None:
            self.cycle = self  # as in a model with hooks, which only the garbage collector frees
            counts.append(len(living))
            living.add(self)

    monkeypatch.setattr(module, "TimedSteps", Steps)
    monkeypatch.setattr(module, "time_rounds", lambda *_: {})
    time_groups(dict.fromkeys("abc", spec(registry)), ["ab", "ac"], 1.0, registry)
    assert counts == [0, 1, 2, 0, 1, 2]


@pytest.mark.thorough
@pytest.mark.parametrize(("preset", "kind"), [("gpt-tiny", GENERATION), ("encoder-tiny", FORWARD)])
def test_inference_is_timed_at_both_batches(registry: Registry, preset: str, kind: str) -> None:
    specs = {"a": spec(registry, preset), "b": spec(registry, preset, "dims.layers=4")}
    result = time_groups(specs, ["ab"], 0.01, registry, inference=True)
    assert [timed["batch"] for timed in result["inference"]] == [1, 32]
    tokens = 8 if kind == GENERATION else 16  # half of the text is written, or all of it is read
    for timed in result["inference"]:
        (group,) = timed["groups"]
        assert group["task"] == kind
        assert set(group["rounds"]) == {"a", "b", TWIN}
        assert timed["tokens"] == dict.fromkeys("ab", timed["batch"] * tokens)
        assert timed["bytes"]["a"] < timed["bytes"]["b"]
    single, many = result["inference"]
    assert single["bytes"]["a"] < many["bytes"]["a"]


@pytest.mark.thorough
def test_a_model_that_cannot_generate_makes_the_inference_of_its_group_a_forward_pass(
    registry: Registry,
) -> None:
    specs = {"a": spec(registry), "b": spec(registry, "encoder-tiny")}
    result = time_groups(specs, ["ab"], 0.01, registry, inference=True)
    assert {group["task"] for timed in result["inference"] for group in timed["groups"]} == {FORWARD}


@pytest.mark.thorough
def test_without_inference_only_steps_are_timed(registry: Registry) -> None:
    result = time_groups({"a": spec(registry)}, ["a"], 0.01, registry)
    assert set(result) == {"groups", "tokens", "clock"}
