"""Variants whose trials differ from the baseline's get no verdict; a study with such variants only is refused."""

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
from tests.fixtures.problems import raises_problem

from paribus.analysis.compare import compare
from paribus.analysis.trials import ComparisonSpec, TrialEntry
from paribus.errors import EXIT_NOT_COMPARABLE, NotComparableError

Make = Callable[..., TrialEntry]
Ask = Callable[..., ComparisonSpec]
Study = Callable[..., list[TrialEntry]]

ATTENTION = {"attention": "mqa"}
CERTIFICATE = "result/certificate"

# What the variant varied, what is wrong with its record, the code of the problem, a value in it.
REFUSED: dict[str, tuple[dict[str, Any], dict[str, Any], str, str]] = {
    "E2 other corpus": (ATTENTION, {"result/data/corpus": "x"}, "other-corpus", "it and baseline"),
    "E2 varied corpus": ({"corpus": {"name": "docstrings"}}, {}, "other-corpus", "it and baseline"),
    "E2 other tokenizer": (ATTENTION, {"result/data/tokenizer": "x"}, "other-tokenizer", "it and baseline"),
    "E2 varied tokenizer": ({"tokenizer": {"name": "wordpiece"}}, {}, "other-tokenizer", "it and baseline"),
    "E2 other objective": ({"evaluate": [{"name": "clm"}]}, {}, "other-objective", "it and baseline"),
    "E2 other length": ({"dims.length": 8}, {}, "other-length", "dims.length"),
    "E2 other examples": (ATTENTION, {f"{CERTIFICATE}/validation": "x"}, "other-validation", "it and baseline"),
    "E2 fewer examples": ({"data.validation": 8}, {}, "other-validation", "it and baseline"),
    "E3 other steps": (ATTENTION, {"result/steps": 50, "result/curve": []}, "other-steps", "it and baseline"),
    "E3 other tokens": (ATTENTION, {"result/tokens": 50}, "other-tokens", "it and baseline"),
    "E6 best of": (ATTENTION, {"result/curve": [{"step": 25}]}, "no-final-metric", "it"),
    "E10 no metric": (ATTENTION, {"result/metrics": {"val/x": 1.0}}, "unknown-metric", "val/mlm/loss"),
}  # fmt: skip


@pytest.mark.parametrize(("varied", "edits", "code", "value"), REFUSED.values(), ids=list(REFUSED))
def test_trials_that_are_not_comparable_are_refused(
    make: Make, ask: Ask, varied: dict[str, Any], edits: dict[str, Any], code: str, value: str
) -> None:
    entries = [make(), make(seed=1), make("it", varied=varied), make("it", 1, varied=varied, edits=edits)]
    with raises_problem(NotComparableError, code, value) as caught:
        compare(entries, ask(entries))
    assert caught.value.exit_code == EXIT_NOT_COMPARABLE == 6


@pytest.mark.parametrize(("varied", "edits", "code", "value"), REFUSED.values(), ids=list(REFUSED))
def test_one_variant_that_is_not_comparable_leaves_the_others_their_verdicts(
    make: Make, ask: Ask, varied: dict[str, Any], edits: dict[str, Any], code: str, value: str
) -> None:
    others = [
        make(variant, seed, varied=ATTENTION if variant == "mqa" else {})
        for variant in ("baseline", "mqa")
        for seed in range(3)
    ]
    alone = compare(others, ask(others))
    entries = [*others, *(make("it", seed, varied=varied, edits=edits if seed else {}) for seed in range(3))]
    table = compare(entries, ask(entries))
    rows = {row.variant: row for row in table.rows}
    assert rows["it"].kind == "withheld"
    assert rows["it"].mean is None, "numbers of other data or of another budget stand in no table"
    assert rows["mqa"].mean == alone.rows[0].mean
    assert rows["mqa"].kind != "withheld"
    assert "it" not in table.differences


def test_a_baseline_that_differs_among_its_seeds_is_refused(make: Make, ask: Ask) -> None:
    entries = [make(), make(seed=1, edits={"result/tokens": 50})]
    entries += [make(variant, varied=ATTENTION) for variant in ("it", "other")]
    with raises_problem(NotComparableError, "other-tokens", "seeds of baseline"):
        compare(entries, ask(entries))


def test_all_violated_conditions_are_reported_at_once(make: Make, ask: Ask) -> None:
    edits = {"result/data/corpus": "x", "result/data/tokenizer": "y", "result/metrics": {}, "result/tokens": 1}
    entries = [
        make(),
        make("it", varied=ATTENTION, edits=edits),
        make("other", varied={"norm": "rmsnorm"}, edits=edits),
    ]
    with raises_problem(NotComparableError, "other-corpus", "it, other and baseline") as caught:
        compare(entries, ask(entries))
    codes = [problem.code for problem in caught.value.problems]
    assert codes == ["other-corpus", "other-tokenizer", "other-tokens", "unknown-metric"]


@pytest.mark.parametrize("varied", [{"trainer.max_steps": 50}, {"data.batch": 8}])
def test_a_varied_budget_is_allowed(make: Make, ask: Ask, varied: dict[str, Any]) -> None:
    entries = [make(), make("it", varied=varied)]
    table = compare(entries, ask(entries))
    assert table.certificates["it"].ok
    assert "against" in table.certificates["it"].text


def test_a_missing_metric_is_reported_with_the_measured_ones(make: Make, ask: Ask) -> None:
    entries = [make(), make("it", varied=ATTENTION)]
    with raises_problem(NotComparableError, "unknown-metric", "val/clm/loss", "val/mlm/loss, val/mlm/accuracy"):
        compare(entries, ask(entries, metric="val/clm/loss"))
    nothing = [make(edits={"result/metrics": {}})]
    with raises_problem(NotComparableError, "unknown-metric", "baseline", "val/mlm/loss", "none"):
        compare(nothing, ask(nothing))


@pytest.mark.parametrize("states", [["pending"], ["failed", "running"], []])
def test_a_study_without_records_is_refused(study: Study, ask: Ask, states: list[str]) -> None:
    entries = study(baseline=states, mqa=states)
    comparison = ask(study(baseline=[2.0]))
    with raises_problem(NotComparableError, "no-records", "attention", "paribus run"):
        compare(entries, comparison)


def test_stale_records_are_named_where_no_other_exists(make: Make, ask: Ask) -> None:
    entries = [make(state="pending"), make(changed=("the engine",))]
    with raises_problem(NotComparableError, "no-records", "1 record", "the engine"):
        compare(entries, ask(entries))


def test_an_early_divergence_is_not_another_budget(study: Study, ask: Ask) -> None:
    entries = study(baseline=[2.0, 2.0], mqa=["diverged", 2.0])
    assert compare(entries, ask(entries)).rows[0].verdict == "diverged 1/2"


def test_the_options_of_an_objective_may_differ_where_its_examples_do_not(make: Make, ask: Ask) -> None:
    variant = make("it", varied={"evaluate": [{"name": "mlm", "rate": 0.15, "transform": False}]})
    certificate = {**variant.certificate, "validation": make().certificate["validation"]}  # a head changes no example
    record = {**(variant.record or {}), "result": {**variant.result, "certificate": certificate}}
    entries = [make(), dataclasses.replace(variant, record=record)]
    table = compare(entries, ask(entries))
    assert "The variants evaluate an objective with different options: transform." in table.warnings


def test_the_training_objective_is_evaluated_by_default(make: Make, ask: Ask) -> None:
    varied = {"evaluate": None, "objective": [{"name": "mlm", "rate": 0.3}]}
    entries = [make(), make("it", varied=varied)]
    with raises_problem(NotComparableError, "other-validation", "it"):
        compare(entries, ask(entries))


def test_the_error_names_the_searched_store(study: Study, ask: Ask) -> None:
    entries = study(baseline=["pending"], mqa=["pending"])
    with raises_problem(NotComparableError, "no-records", "/somewhere/runs/s"):
        compare(entries, ask(entries, store="/somewhere/runs/s"))


def test_metrics_per_byte_compare_tokenizers_on_the_whole_text(make: Make, ask: Ask) -> None:
    metric = "val/clm/bits-per-byte"
    varied = {"tokenizer": {"name": "wordpiece"}}

    def trials(*, full_validation: bool) -> list[TrialEntry]:
        edits = {"result/metrics": {metric: 2.0}, "result/data/full_validation": full_validation}
        return [make(edits=edits), make("it", varied=varied, edits=edits)]

    table = compare(trials(full_validation=True), ask(trials(full_validation=True), metric=metric))
    assert table.rows[0].n == 1
    lossy = trials(full_validation=True)
    lossy[1] = make(
        "it",
        varied=varied,
        edits={"result/metrics": {metric: 2.0}, "result/data/full_validation": True, "result/data/lost_bytes": 0.07},
    )
    with raises_problem(NotComparableError, "lossy-tokenizer", "wordpiece", "7"):
        compare(lossy, ask(lossy, metric=metric))
    same = [
        make(
            "baseline",
            edits={
                "result/metrics": {metric: 2.0},
                "result/data/lost_bytes": 0.07,
                "result/data/full_validation": True,
            },
        ),
        make(
            "it",
            varied=ATTENTION,
            edits={
                "result/metrics": {metric: 2.0},
                "result/data/lost_bytes": 0.07,
                "result/data/full_validation": True,
            },
        ),
    ]
    assert compare(same, ask(same, metric=metric)).rows[0].n == 1
    with raises_problem(NotComparableError, "other-validation", "data.validation"):
        compare(trials(full_validation=False), ask(trials(full_validation=False), metric=metric))


def test_two_engines_on_an_accelerator_give_no_verdict_until_one_was_replayed(make: Make, ask: Ask) -> None:
    device = {"provenance/machine/device": "cuda"}

    def entry(variant: str, seed: int, engine: str, replayed_by: str = "") -> TrialEntry:
        verified = {"provenance/verified": {"engine": replayed_by}} if replayed_by else {}
        edits = {**device, "provenance/engine": engine, **verified}
        return make(variant, seed, varied={"attention": "mqa"} if variant == "mqa" else {}, edits=edits)

    baseline = [entry("baseline", seed, "old") for seed in range(3)]
    mixed = [*baseline, *(entry("mqa", seed, "new") for seed in range(3))]
    assert compare(mixed, ask(mixed)).rows[0].n == 0
    assert any("engine old against new" in note for note in compare(mixed, ask(mixed)).notes)
    replayed = [
        *(entry("baseline", seed, "old", "new") for seed in range(3)),
        *(entry("mqa", seed, "new") for seed in range(3)),
    ]
    assert compare(replayed, ask(replayed)).rows[0].n == 3
