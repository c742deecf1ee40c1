"""A plan tells what a study will take, counted as its records will count it, and leaves nothing behind."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.core.paribus.evidence.mistaken_attention import CLASSES

from paribus.evidence.leaks import FUTURE
from paribus.planning import estimate as plan_estimate
from paribus.planning.api import PlannedStudy, study
from paribus.planning.estimate import Row, estimate
from paribus.registry import Registry
from paribus.studies.designs import BASELINE
from paribus.train import step_memory
from paribus.train.spec_costs import count_quantity, flops_per_step

MakeSpec = Callable[..., dict[str, Any]]


def planned(tiny: MakeSpec, registry: Registry, budget: dict[str, float], store: Path) -> PlannedStudy:
    base = {key: value for key, value in tiny().items() if key != "seed"}
    tree = {"base": base, "vary": {"dims.layers": [3]}, "seeds": 3, "budget": budget, "metric": "val/clm/loss"}
    return study(json.loads(json.dumps(tree)), registry=registry, store=store)


def rows(result: PlannedStudy, registry: Registry, **states: str) -> dict[str, Row]:
    known = {trial.identity: states.get(f"seed{trial.seed}", "pending") for trial in result.plan.trials}
    return {row.variant: row for row in estimate(result.plan, registry, known)}


@pytest.fixture(scope="module")
def estimated(
    tiny: MakeSpec, registry: Registry, tmp_path_factory: pytest.TempPathFactory
) -> tuple[PlannedStudy, dict[str, Row], Path]:
    store = tmp_path_factory.mktemp("plan") / "runs"
    result = planned(tiny, registry, {"steps": 40}, store)
    return result, rows(result, registry, seed0="done"), store


@pytest.mark.thorough
def test_an_estimate_counts_like_a_record(
    estimated: tuple[PlannedStudy, dict[str, Row], Path], registry: Registry
) -> None:
    result, every, _ = estimated
    for variant in result.plan.variants:
        spec, row = dict(result.plan.trials_of(variant.name)[0].spec), every[variant.name]
        assert row.training_flops == 40 * flops_per_step(spec, registry)
        assert row.parameters == count_quantity("params", spec, registry)
        assert row.cache_bytes_per_token * spec["dims"]["length"] == count_quantity("kv", spec, registry)
        assert row.flops_per_token * spec["dims"]["length"] == pytest.approx(count_quantity("flops", spec, registry))


def test_a_trial_starts_trains_and_is_evaluated(estimated: tuple[PlannedStudy, dict[str, Row], Path]) -> None:
    for row in estimated[1].values():
        parts = (row.startup_seconds, row.training_seconds, row.evaluation_seconds)
        assert min(parts) > 0
        assert row.seconds_per_trial == pytest.approx(sum(parts))
        assert (row.trials, row.pending) == (3, 2)
        assert row.seconds == pytest.approx(2 * row.seconds_per_trial)
        assert row.peak_bytes > 16 * row.parameters  # with gradients and the optimizer's moments


def test_nothing_is_written(estimated: tuple[PlannedStudy, dict[str, Row], Path]) -> None:
    assert not estimated[2].exists()


def test_a_trial_with_a_budget_in_seconds_has_no_estimate_of_flops(
    tiny: MakeSpec, registry: Registry, tmp_path: Path
) -> None:
    row = rows(planned(tiny, registry, {"seconds": 7.5}, tmp_path), registry)[BASELINE]
    assert row.training_seconds == 7.5
    assert math.isnan(row.training_flops)


def test_a_plan_tells_what_a_component_of_a_plugin_does_not_keep(
    tiny: MakeSpec, components: Registry, tmp_path: Path
) -> None:
    registry = components.with_components(attention=CLASSES)
    tree = {
        "base": {key: value for key, value in tiny().items() if key != "seed"},
        "vary": {"attention": ["gqa", "hand-made", "without-mask"]},
        "seeds": 1,
        "budget": {"steps": 4},
        "metric": "val/clm/loss",
    }
    estimates = rows(study(json.loads(json.dumps(tree)), registry=registry, store=tmp_path), registry)
    assert {name: [*row.faults] for name, row in estimates.items() if row.check_seconds} == {
        "attention=hand-made": [],
        "attention=without-mask": [FUTURE],
    }
    row = estimates["attention=hand-made"]
    assert row.seconds_per_trial > row.startup_seconds + row.training_seconds + row.evaluation_seconds


@pytest.mark.thorough
def test_a_step_that_does_not_fit_is_not_timed(
    tiny: MakeSpec, registry: Registry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    result = planned(tiny, registry, {"steps": 40}, tmp_path / "runs")
    monkeypatch.setattr(step_memory, "free_memory", lambda device: 1000)
    monkeypatch.setattr(plan_estimate, "TimedSteps", None)  # not built
    for row in rows(result, registry).values():
        assert row.free_bytes == 1000 < row.peak_bytes
        assert math.isnan(row.seconds)
        assert row.parameters > 0
        assert row.training_flops > 0
