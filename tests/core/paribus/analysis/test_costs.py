"""Costs of a variant: counted numbers always, measured ones only on comparable machines."""

from collections.abc import Callable, Mapping
from typing import Any

import pytest

from paribus.analysis.compare import compare
from paribus.analysis.table import Table
from paribus.analysis.trials import ComparisonSpec, TrialEntry

Make = Callable[..., TrialEntry]
Ask = Callable[..., ComparisonSpec]


def only(table: Table) -> Any:
    (row,) = table.rows
    return row


def elsewhere(make: Make, provenance: Mapping[str, Any], baseline_too: bool = True) -> list[TrialEntry]:
    edits = {f"provenance/{key}": value for key, value in provenance.items()}
    base = [make(seed=seed, loss=2.0 + seed / 10, edits=edits if baseline_too else {}) for seed in (0, 1)]
    return [*base, *(make("it", seed, varied={"attention": "mqa"}, loss=2.5, edits=edits) for seed in (0, 1))]


def test_speed_is_not_compared_across_machines(make: Make, ask: Ask) -> None:
    entries = elsewhere(make, {"machine": {"device": "cpu", "name": "another", "threads": "1"}}, baseline_too=False)
    table = compare(entries, ask(entries))
    row = only(table)
    assert row.costs["tokens_per_second"].ratio is row.costs["peak_bytes"].ratio is None
    assert row.costs["parameters"].ratio < 1
    assert row.difference is not None
    assert any("2 kinds of machine (cpu a processor 1, cpu another 1)" in warning for warning in table.warnings)


def test_speed_on_two_hosts_of_one_kind_is_approximate(make: Make, ask: Ask) -> None:
    entries = elsewhere(make, {"host": "there"}, baseline_too=False)
    table = compare(entries, ask(entries))
    assert only(table).costs["tokens_per_second"].rough
    assert any("different machines" in warning for warning in table.warnings)


def test_speed_beside_other_trials_is_marked_contended(make: Make, ask: Ask) -> None:
    table = compare(elsewhere(make, {"contended": True}), ask(elsewhere(make, {})))
    assert only(table).costs["tokens_per_second"].rough
    assert not only(table).costs["peak_bytes"].rough
    assert only(table).to_json("m")["contended"] is True
    assert "Trials shared a machine (contended): speed is approximate (~)." in table.caption


def test_the_costs_are_multiples_of_the_baselines(make: Make, ask: Ask) -> None:
    fast = {"provenance/training_seconds": 1.0, "provenance/peak_bytes": 6e8, "result/cache_bytes_per_token": 8.0}
    entries = [make(edits={"result/cache_bytes_per_token": 32.0}), make("it", varied={"attention": "mqa"}, edits=fast)]
    row = only(compare(entries, ask(entries)))
    assert row.costs["tokens_per_second"].ratio == pytest.approx(2.0)
    assert row.costs["peak_bytes"].ratio == pytest.approx(1.5)
    assert row.costs["cache_bytes_per_token"].ratio == pytest.approx(0.25)
    assert row.costs["parameters"].value < entries[0].result["parameters"]


def test_a_cost_without_a_baseline_value_has_no_ratio(make: Make, ask: Ask) -> None:
    entries = [make(), make("it", varied={"attention": "mqa"}, edits={"result/cache_bytes_per_token": 8.0})]
    row = only(compare(entries, ask(entries)))
    assert (row.costs["cache_bytes_per_token"].value, row.costs["cache_bytes_per_token"].ratio) == (8.0, None)


def test_the_memory_of_two_seeds_is_their_median_and_agrees_with_its_ratio(make: Make, ask: Ask) -> None:
    sizes = {"baseline": (4e8, 6e8), "it": (2e8, 3e8)}
    entries = [
        make(name, seed, varied={"attention": "mqa"} if name == "it" else {}, edits={"provenance/peak_bytes": size})
        for name, seed_sizes in sizes.items()
        for seed, size in enumerate(seed_sizes)
    ]
    table = compare(entries, ask(entries))
    baseline, variant = table.baseline.costs["peak_bytes"], only(table).costs["peak_bytes"]
    assert (baseline.value, variant.value) == (5e8, 2.5e8)
    assert variant.ratio == pytest.approx(variant.value / baseline.value)
