"""Budgets of FLOPs or time: unequal steps are accepted, other differences are not."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
from tests.fixtures.problems import raises_problem

from paribus.analysis.compare import compare
from paribus.analysis.trials import ComparisonSpec, TrialEntry
from paribus.errors import NotComparableError

Make = Callable[..., TrialEntry]
Ask = Callable[..., ComparisonSpec]
CERTIFICATE = "result/certificate"
SECONDS = {"max_time": {"seconds": 60}}
BATCH_DIGESTS = {"1": "a", "2": "b", "64": "c"}


def operations(make: Make, name: str, steps: int, seed: int = 0, **options: Any) -> TrialEntry:
    """A trial that a budget of operations gave so many steps."""
    varied, edits = options.pop("varied", {}), options.pop("edits", {})
    entry = make(name, seed, varied=varied, matched={"trainer.max_steps": steps}, edits=edits, **options)
    return dataclasses.replace(
        entry, trial={**entry.trial, "matched_values": {}, "budget_values": {"trainer.max_steps": steps}}
    )


def seconds(make: Make, name: str, steps: int, seed: int = 0, **options: Any) -> TrialEntry:
    """A trial that was cut by time after so many steps."""
    edits = {
        "spec/trainer": SECONDS,
        "result/steps": steps,
        "result/tokens": 64 * steps,
        "result/curve": [],
        "result/time_budget": {"seconds": 60.0, "clock": "cpu"},
        **options.pop("edits", {}),
    }
    entry = make(name, seed, edits=edits, **options)
    trial = {**entry.trial, "spec": {**entry.trial["spec"], "trainer": SECONDS}}
    return dataclasses.replace(entry, trial={**trial, "budget_values": {"trainer.max_time": {"seconds": 60}}})


MQA = {"attention": "mqa"}


def test_unequal_steps_of_a_flops_budget_are_a_side_effect(make: Make, ask: Ask) -> None:
    entries = [operations(make, "baseline", 100), operations(make, "mqa", 120, varied=MQA)]
    table = compare(entries, ask(entries, budget={"flops": 1e15}))
    certificate = table.certificates["mqa"]
    assert certificate.ok
    assert "100 steps against 120" in certificate.side_effects
    assert any("1e+15 training FLOPs, to the nearest step" in line for line in table.caption)


def test_trials_with_a_time_budget_share_a_table_with_a_caption(make: Make, ask: Ask) -> None:
    entries = [seconds(make, "baseline", 100), seconds(make, "mqa", 93, varied=MQA)]
    entries += [seconds(make, "baseline", 97, 1), seconds(make, "mqa", 99, 1, varied=MQA)]
    table = compare(entries, ask(entries, budget={"seconds": 60}))
    assert table.certificates["mqa"].ok
    assert table.certificates["mqa"].side_effects.count("stopped by time, after different steps") == 1
    caption = " ".join(table.caption)
    assert "stopped after 60 CPU seconds of training on a processor" in caption
    assert "a repetition gives other numbers" in caption


def test_trials_with_a_time_budget_on_two_machines_are_not_paired(make: Make, ask: Ask) -> None:
    entries = [seconds(make, "baseline", 100), seconds(make, "mqa", 93, varied=MQA, edits={"provenance/host": "there"})]
    row = compare(entries, ask(entries, budget={"seconds": 60})).rows[0]
    assert row.kind == "withheld"
    assert row.n == 0


FAULTS: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "a swap beside the model": (
        {"position": "learned"},
        {f"{CERTIFICATE}/no_gradient": ["body.position.0.table.weight"]},
        "untrained",
    ),
    "other batches as far as both ran": (
        MQA,
        {f"{CERTIFICATE}/batch_digests": {**BATCH_DIGESTS, "64": "x"}},
        "other batches",
    ),
    "another difference": (MQA, {"spec/norm": {"name": "rmsnorm"}}, "another difference"),
    "other steps than it was given": (MQA, {"spec/trainer": {"max_steps": 7}}, "ignored option"),
    "nothing but the steps": ({}, {}, "changed nothing"),
}  # fmt: skip


@pytest.mark.parametrize(("varied", "edits", "reason"), FAULTS.values(), ids=list(FAULTS))
def test_a_flops_budget_does_not_excuse_faults(
    make: Make, ask: Ask, varied: dict[str, Any], edits: dict[str, Any], reason: str
) -> None:
    baseline = operations(make, "baseline", 100, edits={f"{CERTIFICATE}/batch_digests": BATCH_DIGESTS})
    entries = [baseline, operations(make, "it", 120, varied=varied, edits=edits)]
    row = compare(entries, ask(entries, budget={"flops": 1e15})).rows[0]
    assert row.kind == "withheld"
    assert reason in row.verdict


def test_batches_are_compared_over_the_common_steps(make: Make, ask: Ask) -> None:
    by_variant = [
        {f"{CERTIFICATE}/batch_digests": digests} for digests in (BATCH_DIGESTS, {**BATCH_DIGESTS, "128": "d"})
    ]
    entries = [operations(make, "baseline", 100, edits=by_variant[0])]
    entries += [operations(make, "mqa", 130, varied=MQA, edits=by_variant[1])]
    assert "same batches for 64 steps" in compare(entries, ask(entries)).certificates["mqa"].confirmed


def test_unequal_steps_without_a_budget_are_refused(make: Make, ask: Ask) -> None:
    entries = [make(), make("mqa", varied=MQA, edits={"result/steps": 120, "result/curve": []})]
    with raises_problem(NotComparableError, "other-steps", "mqa"):
        compare(entries, ask(entries, budget={"steps": 100}))
