"""A budget gives every variant as much: in steps, in tokens, in operations that are counted, or in seconds."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.fixtures.problems import raises_problem

from paribus.analysis.trial_pair import TrialPair
from paribus.analysis.trials import TrialEntry
from paribus.errors import SpecError
from paribus.planning.api import PlannedStudy, study
from paribus.planning.plan import first_step
from paribus.registry import Registry
from paribus.specs.diff import covered, differences
from paribus.specs.trainer_options import max_seconds
from paribus.studies.designs import BASELINE
from paribus.train.spec_costs import flops_per_step
from paribus.train.trial import Record, TrialContext, run_trial

MakeSpec = Callable[..., dict[str, Any]]
FLOPS = 2e7
VARY = {"attention": ["mqa"], "feedforward.expand": [1, 8]}


def planned(tiny: MakeSpec, registry: Registry, budget: dict[str, Any], **options: Any) -> PlannedStudy:
    """A study over the tests' own corpus."""
    base = {key: value for key, value in tiny().items() if key != "seed"}
    tree = {"base": base, "vary": VARY, "seeds": 2, "budget": budget, "metric": "val/clm/loss", **options}
    return study(json.loads(json.dumps(tree)), registry=registry)


@pytest.fixture(scope="module")
def records(
    tiny: MakeSpec, registry: Registry, tmp_path_factory: pytest.TempPathFactory
) -> list[tuple[dict[str, Any], Record]]:
    """Trials of a budget in operations, each with the spec that it ran."""
    plan = planned(tiny, registry, {"flops": FLOPS}).plan
    trials = [plan.trials_of(variant.name)[0] for variant in plan.variants]
    folder = tmp_path_factory.mktemp("flops")
    result = []
    for trial in trials:
        overrides = folder / trial.identity
        overrides.mkdir()
        result.append((dict(trial.spec), run_trial(trial.spec, registry, TrialContext(trial.identity, overrides))))
    return result


@pytest.mark.thorough
def test_a_record_meets_a_budget_of_flops_to_half_a_step(
    records: list[tuple[dict[str, Any], Record]], registry: Registry
) -> None:
    for spec, record in records:
        step = flops_per_step(spec, registry)
        assert record["result"]["total_flops"] == record["result"]["steps"] * step
        assert abs(record["result"]["total_flops"] - FLOPS) <= step / 2
    assert len({record["result"]["steps"] for _, record in records}) > 1


@pytest.mark.parametrize("unit", ["steps", "tokens"])
def test_a_whole_budget_may_be_written_as_a_float(unit: str, tiny: MakeSpec, registry: Registry) -> None:
    whole, written_as_float = (planned(tiny, registry, {unit: amount}).plan for amount in (2000, 2e3))
    assert [trial.identity for trial in written_as_float.trials] == [trial.identity for trial in whole.trials]


def test_each_trial_has_the_steps_of_a_budget_of_flops(tiny: MakeSpec, registry: Registry) -> None:
    result = planned(tiny, registry, {"flops": FLOPS}).plan
    for variant in result.variants:
        for trial in result.trials_of(variant.name):
            steps = trial.spec["trainer"]["max_steps"]
            assert trial.document()["budget_values"] == trial.budget_values == {"trainer.max_steps": steps}
            assert "trainer.max_steps" not in trial.changes
    assert "budget_values" not in planned(tiny, registry, {"steps": 9}).plan.trials[0].document()


BATCHES: dict[str, dict[str, Any]] = {
    "one at a time": {"vary": {"data.batch": [3], "data": [{"batch": 7}]}},
    "factorial": {"vary": {"data.batch": [3], "norm": ["rmsnorm"]}, "design": "factorial"},
    "ladder": {
        "changes": [{"data.batch": 3}, {"norm": "rmsnorm"}, {"data.batch": 4}],
        "design": "ladder",
        "vary": None,
    },
    "reference": {"vary": {"dims.heads": [1]}, "base": {"data": {"batch": "${dims.heads}", "validation": 8}}},
    "stage": {"vary": {"one.data.batch": [3]}, "stages": {"one": {"budget": {"tokens": 999}}, "two": {"from": "one"}}},
}


@pytest.mark.parametrize("unit", ["steps", "tokens", "flops", "seconds"])
@pytest.mark.parametrize("options", BATCHES.values(), ids=list(BATCHES))
@pytest.mark.covering(strength=1)
def test_all_that_differs_between_variants_is_varied_or_follows_from_the_budget(
    tiny: MakeSpec, registry: Registry, unit: str, options: dict[str, Any]
) -> None:
    base = {key: value for key, value in {**tiny(), **options.get("base", {})}.items() if key != "seed"}
    result = planned(tiny, registry, {unit: FLOPS if unit == "flops" else 2000}, **{**options, "base": base}).plan
    trials = {(trial.stage, trial.variant): trial for trial in result.trials}.values()
    entries = [TrialEntry(variant=it.variant, seed=it.seed, trial=it.document()) for it in trials]
    for pair in itertools.starmap(TrialPair, itertools.permutations(entries, 2)):
        if len({entry.trial.get("stage") for entry in pair}) == 1:
            paths = [difference.path for difference in differences(pair.baseline.spec, pair.variant.spec)]
            assert [path for path in paths if not covered(path, pair.varied | pair.budget_overrides)] == []


def test_a_budget_of_tokens_counts_the_tokens_of_a_reference(tiny: MakeSpec, registry: Registry) -> None:
    base = {**tiny(), "data": {"batch": "${dims.heads}", "validation": 8}}
    base.pop("seed")
    for trial in planned(tiny, registry, {"tokens": 2000}, base=base, vary={"dims.heads": [1]}).plan.trials:
        tokens = trial.spec["data"]["batch"] * trial.spec["dims"]["length"]
        assert trial.spec["trainer"]["max_steps"] == -(-2000 // tokens)


@pytest.mark.parametrize(
    ("unit", "changes", "key"),
    [
        ("tokens", {"trainer.max_steps": 5}, "trainer.max_steps"),
        ("steps", {"trainer": {"max_steps": 5}}, "trainer.max_steps"),
        ("seconds", {"trainer.max_time.minutes": 5}, "trainer.max_time"),
    ],
)
def test_a_variant_cannot_set_what_the_budget_sets(
    tiny: MakeSpec, registry: Registry, unit: str, changes: dict[str, Any], key: str
) -> None:
    variants = [{**changes, "norm": "rmsnorm"}]
    with raises_problem(SpecError, "does-not-fit", key, "budget"):
        planned(tiny, registry, {unit: 100}, vary=None, variants=variants, design="list")


def test_a_smaller_model_takes_more_steps(tiny: MakeSpec, registry: Registry) -> None:
    result = planned(tiny, registry, {"flops": FLOPS}).plan
    steps = {
        variant.name: result.trials_of(variant.name)[0].spec["trainer"]["max_steps"] for variant in result.variants
    }
    assert steps["feedforward.expand=1"] > steps[BASELINE] > steps["feedforward.expand=8"]


def test_variants_with_equal_flops_take_equally_many_steps(tiny: MakeSpec, registry: Registry) -> None:
    match = {"on": "flops", "by": "feedforward.inner"}
    base = {**tiny(), "feedforward": {"name": "mlp", "inner": 64, "expand": None}}
    base.pop("seed")
    result = planned(tiny, registry, {"flops": FLOPS}, base=base, vary={"attention": ["mqa"]}, match=match).plan
    steps = [result.trials_of(variant.name)[0].spec["trainer"]["max_steps"] for variant in result.variants]
    assert abs(steps[0] - steps[1]) <= 1 + 0.02 * steps[0]
    assert result.trials_of("attention=mqa")[0].spec["feedforward"]["inner"] != 64


def test_frozen_parameters_pay_for_more_steps(tiny: MakeSpec, registry: Registry) -> None:
    result = planned(tiny, registry, {"flops": FLOPS}, vary={"freeze": ["body"]}).plan
    trained, frozen = (result.trials_of(variant.name)[0].spec for variant in result.variants)
    ratio = flops_per_step(frozen, registry) / flops_per_step(trained, registry)
    assert 1 / 3 < ratio < 1
    assert frozen["trainer"]["max_steps"] == pytest.approx(trained["trainer"]["max_steps"] / ratio, abs=1)
    with raises_problem(SpecError, "does-not-fit", "freeze.steps"):
        planned(tiny, registry, {"flops": FLOPS}, vary={"freeze": [{"paths": "body", "steps": 1}]})


def test_a_budget_below_one_step_is_refused(tiny: MakeSpec, registry: Registry) -> None:
    with raises_problem(SpecError, "out-of-range", "budget.flops", "10"):
        planned(tiny, registry, {"flops": 10})


def test_a_budget_in_seconds_is_the_same_for_all_variants_and_sets_no_steps(tiny: MakeSpec, registry: Registry) -> None:
    result = planned(tiny, registry, {"seconds": 2.5}).plan
    for trial in result.trials:
        assert max_seconds(trial.spec["trainer"]) == 2.5
        assert trial.spec["trainer"]["max_steps"] is None  # whatever the base has
        assert trial.budget_values == {"trainer.max_time": {"seconds": 2.5}}
    assert first_step(result.trials[0]).spec["trainer"] == {"max_steps": 1}


@pytest.mark.parametrize(
    ("budget", "code", "values"),
    [
        ({"flops": 0}, "out-of-range", ("budget.flops", "> 0")),
        ({"seconds": "60"}, "wrong-type", ("budget.seconds", "60")),
        ({"steps": 1.5}, "wrong-type", ("budget.steps", "1.5")),
        ({"minutes": 1}, "unknown-key", ("minutes", "steps, tokens, flops, seconds")),
        ({"steps": 5, "seconds": 5}, "too-many", ("budget", "steps, seconds")),
    ],
)
def test_an_invalid_budget_is_refused(
    tiny: MakeSpec, registry: Registry, tmp_path: Path, budget: dict[str, Any], code: str, values: tuple[str, ...]
) -> None:
    with raises_problem(SpecError, code, *values):
        planned(tiny, registry, budget)


def test_each_stage_may_have_a_budget_of_its_own_unit(tiny: MakeSpec, registry: Registry) -> None:
    stages = {"one": {"budget": {"flops": FLOPS}}, "two": {"budget": {"steps": 3}}}
    result = planned(tiny, registry, {"steps": 7}, stages=stages).plan
    initial, second = (
        result.trials_of("feedforward.expand=1", "one")[0],
        result.trials_of("feedforward.expand=1", "two")[0],
    )
    assert initial.budget_values == {"trainer.max_steps": initial.spec["trainer"]["max_steps"]}
    assert second.budget_values == {}
    assert second.spec["trainer"]["max_steps"] == 3
    assert second.parent_id == initial.identity
