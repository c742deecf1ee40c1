"""The timing pass: every variant takes turns with the baseline, and nothing of a record is touched."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import pytest
import torch
from tests.fixtures.records import stored_record

from paribus.analysis.runs import load_trial_set
from paribus.analysis.throughput import Throughput
from paribus.planning.api import PlannedStudy, study
from paribus.planning.paired_ratio import TWIN
from paribus.registry import Registry
from paribus.runner import timing
from paribus.runner.signals import StopRequest
from paribus.runner.timing import (
    GROUP_SIZE,
    MAX_SECONDS,
    MIN_SECONDS,
    TRAINING_SHARE,
    WITH_INFERENCE,
    timing_document,
    timing_plan,
)
from paribus.runner.worker import TIMING_FILE, WorkerRequest, run_request
from paribus.storage.atomic import write_json
from paribus.storage.saved_model import RECORD
from paribus.studies.designs import BASELINE
from paribus.train.timed_steps import MIN_ROUNDS, TimedSteps, time_rounds, untimed_reason

MakeSpec = Callable[..., dict[str, Any]]
CPU = torch.device("cpu")


@pytest.fixture
def planned(tiny: MakeSpec, registry: Registry, tmp_path: Path) -> PlannedStudy:
    """A study whose trials have records, each of them after so many seconds."""
    base = {key: value for key, value in tiny().items() if key != "seed"}
    tree = {"base": base, "vary": {"dims.layers": [6]}, "seeds": 2, "budget": {"steps": 4}, "metric": "val/clm/loss"}
    return study(json.loads(json.dumps(tree)), registry=registry, store=tmp_path)


def record(planned: PlannedStudy, *, seconds: float = 1000.0, variants: int = 99) -> None:
    for variant in planned.plan.variants[:variants]:
        for trial in planned.plan.trials_of(variant.name):
            planned.store.create_folder(trial)
            provenance = {"training_seconds": seconds}
            record = stored_record(trial.identity, spec=dict(trial.spec), provenance=provenance)
            write_json(planned.store.folder(trial.identity) / RECORD, record)


def carried_out(planned: PlannedStudy, turns: dict[str, Any], registry: Registry) -> int:
    root = planned.store.root
    order = WorkerRequest(store=str(root.parent), study=root.name, identity="timing", spec={}, timing=turns)
    return run_request(WorkerRequest.from_json(order.to_json()), registry, stop=StopRequest())


@pytest.mark.thorough
def test_timing_takes_a_tenth_of_the_study_and_is_skipped_after_a_short_one(planned: PlannedStudy) -> None:
    assert timing_plan(planned) == {}  # nothing has a record
    record(planned, seconds=0.1)
    assert timing_plan(planned) == {}
    assert timing_plan(planned, requested=True)["seconds"] == MAX_SECONDS
    assert timing_plan(planned, requested=False) == {}
    record(planned, seconds=10)  # 4 trials, 3 contestants
    assert timing_plan(planned)["seconds"] == pytest.approx(TRAINING_SHARE * 40 / 3 / WITH_INFERENCE)
    assert MIN_SECONDS < TRAINING_SHARE * 40 / 3 / WITH_INFERENCE < MAX_SECONDS
    record(planned)
    assert timing_plan(planned)["seconds"] == MAX_SECONDS
    assert timing_plan(planned, requested=False) == {}


def test_a_baseline_without_variants_is_not_timed(planned: PlannedStudy) -> None:
    record(planned, variants=1)
    assert timing_plan(planned, requested=True) == {}


@pytest.mark.thorough
def test_rounds_are_kept_beside_the_records_and_not_in_them(planned: PlannedStudy, registry: Registry) -> None:
    record(planned)
    contents = {path: path.read_bytes() for path in planned.store.root.rglob("*.json")}
    turns = {**timing_plan(planned), "seconds": 0.05}
    assert carried_out(planned, turns, registry) == 0
    assert {path: path.read_bytes() for path in contents} == contents
    timings = timing_document(planned.store)
    assert timings is not None
    (group,) = timings["groups"]
    base, deep = (planned.plan.trials_of(variant.name)[0].identity for variant in planned.plan.variants)
    assert set(group["rounds"]) == {base, deep, TWIN}
    assert group["baseline"] == base
    assert len({len(times) for times in group["rounds"].values()}) == 1
    assert min(map(len, group["rounds"].values())) >= MIN_ROUNDS
    assert timings["tokens"] == {base: 4 * 16, deep: 4 * 16}
    assert {"host", "machine", "versions", "clock", "left_out"} <= set(timings)
    assert timing_plan(planned, requested=True) == {}  # all has been timed
    trials = load_trial_set(str(planned.store.root), planned.store.root.parent)
    assert trials is not None
    assert not trials.is_single
    ratio = Throughput(timings).ratio([deep], [base])
    assert ratio is not None
    assert ratio.median < 0.8  # six layers are slower than one
    assert median(group["rounds"][deep]) > median(group["rounds"][base])


def test_a_damaged_document_is_none_and_another_pass_replaces_it(planned: PlannedStudy) -> None:
    record(planned)
    (planned.store.root / TIMING_FILE).write_text("{")
    assert timing_document(planned.store) is None
    assert timing_plan(planned)


@pytest.mark.thorough
def test_options_that_only_lightning_reads_are_skipped_with_a_reason(planned: PlannedStudy, registry: Registry) -> None:
    record(planned)
    turns = {**timing_plan(planned), "seconds": 0.05}
    deep = planned.plan.trials_of("dims.layers=6")[0].identity
    turns["specs"][deep]["trainer"] = {"max_steps": 1, "precision": "64-true"}
    assert carried_out(planned, turns, registry) == 0
    timings = timing_document(planned.store)
    assert timings is not None
    assert timings["left_out"] == {deep: "its precision, 64-true, is implemented by Lightning"}
    assert set(timings["groups"][0]["rounds"]) == {turns["groups"][0][0], TWIN}
    assert untimed_reason({"trainer": {"precision": "bf16-mixed"}}) == ""


class Fake:
    """A contestant that only says when its turn was."""

    def __init__(self, name: str, turns: list[str]) -> None:
        self.name, self.turns = name, turns

    def take(self, count: int) -> None:
        self.turns.append(self.name)
        sum(range(30_000))


@pytest.mark.parametrize(
    ("trainer", "gpus", "compiled"),
    [
        ({}, 0, 0),
        ({}, 1, 5),  # layers compile by default on a GPU: both groups, and a twin of each baseline
        ({"accelerator": "cpu"}, 1, 0),
        ({"compile": False}, 1, 0),
        ({"compile": True}, 0, 5),
        ({"compile": {"mode": "default"}}, 0, 5),
    ],
    ids=str,
)
def test_each_model_that_compiles_has_time_for_it(
    trainer: dict[str, Any], gpus: int, compiled: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(timing, "gpu_count", lambda: gpus)
    turns = {"specs": {name: {"trainer": trainer} for name in "abc"}, "groups": ["ab", "a"], "seconds": 1}
    assert timing._setup_seconds(turns) == timing.SETUP_SECONDS + compiled * timing.COMPILE_SECONDS


def test_the_order_rotates_so_that_no_variant_is_always_first() -> None:
    turns: list[str] = []
    contestants: dict[str, TimedSteps] = {name: Fake(name, turns) for name in "abc"}  # type: ignore[misc]  # it takes turns
    timings = time_rounds(contestants, 0.0, CPU)
    assert {len(times) for times in timings.values()} == {MIN_ROUNDS}
    measured = turns[6:]  # two rounds only warm up
    starts = [measured[3 * number] for number in range(MIN_ROUNDS)]
    assert starts[:6] == list("abcabc")
    assert all(sorted(measured[3 * number : 3 * number + 3]) == list("abc") for number in range(MIN_ROUNDS))


def test_a_stop_request_waits_for_at_most_one_round() -> None:
    turns: list[str] = []
    contestants: dict[str, TimedSteps] = {name: Fake(name, turns) for name in "ab"}  # type: ignore[misc]  # it takes turns
    timings = time_rounds(contestants, 100.0, CPU, should_stop=lambda: len(turns) >= 8)
    assert {name: len(times) for name, times in timings.items()} == {"a": 2, "b": 2}


def test_only_so_many_models_are_in_memory_at_once(tiny: MakeSpec, registry: Registry, tmp_path: Path) -> None:
    base = {key: value for key, value in tiny().items() if key != "seed"}
    rates = [1e-4 * (1 + index) for index in range(2 * GROUP_SIZE + 1)]
    tree = {"base": base, "vary": {"optimizer.lr": rates}, "seeds": 1, "metric": "val/clm/loss"}
    timings = study(json.loads(json.dumps(tree)), registry=registry, store=tmp_path)
    record(timings)
    groups = timing_plan(timings)["groups"]
    assert [len(group) - 1 for group in groups] == [GROUP_SIZE, GROUP_SIZE, 1]
    assert {group[0] for group in groups} == {timings.plan.trials_of(BASELINE)[0].identity}
