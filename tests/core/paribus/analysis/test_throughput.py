"""Speed from timed rounds in turns: a ratio with an interval, instead of the speed of contended trials."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from paribus.analysis.compare import compare
from paribus.analysis.gates import check_table, parse_gates
from paribus.analysis.throughput import Throughput
from paribus.analysis.trials import ComparisonSpec, TrialEntry
from paribus.planning.paired_ratio import TWIN
from paribus.report.table_views import cost_text, has_inference, inference_grid

Make = Callable[..., TrialEntry]
Ask = Callable[..., ComparisonSpec]
MQA = {"attention": "mqa"}
SLOWER = [1.25, 1.24, 1.26, 1.25, 1.23, 1.27, 1.25, 1.25]


def pace(ratios: list[float] = SLOWER, twin: float = 1.0, **fields: Any) -> Throughput:
    """A pass in which the variant took so many times as long as the baseline, in each round."""
    base = [0.010 + 0.001 * (number % 3) for number in range(len(ratios))]  # the machine is now faster, now slower
    rounds = {
        "b": base,
        "v": [seconds * times for seconds, times in zip(base, ratios, strict=True)],
        TWIN: [seconds * twin for seconds in base],
    }
    machine = {"device": "cpu", "name": "a processor", "threads": "1"}
    groups = [{"baseline": "b", "rounds": rounds}]
    return Throughput({"groups": groups, "tokens": {"b": 64, "v": 64}, "clock": "cpu", "machine": machine, **fields})


@pytest.fixture
def entries(make: Make) -> list[TrialEntry]:
    """A study whose trials shared the machine."""
    shared = {"provenance/contended": True}
    trial_entries = [make(edits=shared), make(seed=1, edits=shared)]
    trial_entries += [make("mqa", seed, varied=MQA, edits=shared) for seed in (0, 1)]
    for entry in trial_entries:
        entry.trial["identity"] = "b" if entry.variant == "baseline" else "v"  # type: ignore[index]  # a dict in truth
    return trial_entries


def test_timed_rounds_replace_approximate_speed(entries: list[TrialEntry], ask: Ask) -> None:
    table = compare(entries, ask(entries, throughput=pace()))
    cost = table.rows[0].costs["tokens_per_second"]
    assert not cost.rough
    assert cost.ratio == pytest.approx(0.8)
    assert cost_text(table.rows[0], "tokens_per_second") == "0.80\N{MULTIPLICATION SIGN} [0.79, 0.81]"
    assert cost_text(table.baseline, "tokens_per_second") == "5.82k"  # 64 tokens in the median of its rounds
    assert not any("rough" in line for line in table.warnings)
    assert any("8 paired rounds of CPU time" in line and "a processor" in line for line in table.caption)
    assert table.rows[0].to_json("m")["tokens_per_second_interval"] == [cost.low, cost.high]


@pytest.mark.parametrize("twin", [0.95, 1.0, 1.05])
def test_the_interval_is_widened_by_the_noise_of_the_baseline(twin: float) -> None:
    plain, widened = (pace(twin=factor).ratio(["v"], ["b"]) for factor in (1.0, twin))
    assert plain is not None
    assert widened is not None
    stray = max(twin, 1 / twin)
    assert widened.median == plain.median
    assert (widened.low, widened.high) == pytest.approx((plain.low / stray, plain.high * stray))
    of_itself = pace(twin=twin).ratio(["b"], ["b"])
    assert of_itself is not None
    assert (of_itself.low, of_itself.high) == (1, 1)


def test_without_a_timing_pass_speed_is_approximate(entries: list[TrialEntry], ask: Ask) -> None:
    table = compare(entries, ask(entries))
    assert table.rows[0].costs["tokens_per_second"].rough
    assert "Trials shared a machine (contended): speed is approximate (~)." in table.caption


def test_untimed_trials_keep_approximate_speed(entries: list[TrialEntry], ask: Ask) -> None:
    for entry in entries:
        if entry.variant != "baseline":
            entry.trial["identity"] = "other"  # type: ignore[index]  # a dict in truth
    table = compare(entries, ask(entries, throughput=pace()))
    assert table.rows[0].costs["tokens_per_second"].rough
    assert not any("took turns" in line or "paired rounds" in line for line in table.caption)


@pytest.mark.parametrize(
    ("ratios", "twin", "past", "unclear"),
    [(SLOWER, 1.0, 1, 0), ([1.0] * 8, 1.0, 0, 0), (SLOWER, 1.2, 0, 1), ([1.0, 1.3] * 4, 1.0, 0, 1)],
)
def test_a_gate_trips_if_the_interval_is_past_it_and_the_noise_below(
    entries: list[TrialEntry], ask: Ask, ratios: list[float], twin: float, past: int, unclear: int
) -> None:
    table = compare(entries, ask(entries, throughput=pace(ratios, twin)))
    (check,) = check_table(parse_gates(("slower:10%",)), table)
    assert (len(check.tripped), len(check.unclear)) == (past, unclear)


def test_a_timing_pass_without_rounds_is_ignored(entries: list[TrialEntry], ask: Ask) -> None:
    empty = pace()
    document = {**empty.document, "groups": [{"baseline": "b", "rounds": {"b": [], "v": [], TWIN: []}}]}
    table = compare(entries, ask(entries, throughput=Throughput(document)))
    assert table.rows[0].costs["tokens_per_second"].rough


def inference(batch: int, ratios: list[float], tokens: dict[str, int], task: str) -> dict[str, Any]:
    """A pass of inference in which the variant took so many times as long as the baseline."""
    document = pace(ratios).document
    (group,) = document["groups"]
    sizes = {"b": 1000, "v": 750}
    return {"batch": batch, "groups": [{**group, "task": task}], "tokens": tokens, "bytes": sizes}


@pytest.mark.parametrize(
    ("task", "tokens", "latency", "ratio"),
    [
        ("generation", {"b": 8, "v": 8}, 0.011 / 8, 2.0),  # of a token
        ("forward pass", {"b": 64, "v": 32}, 0.011, 2.0),  # of an example, which is shorter in the variant
    ],
)
def test_latency_is_of_one_request_and_speed_of_many(
    entries: list[TrialEntry], ask: Ask, task: str, tokens: dict[str, int], latency: float, ratio: float
) -> None:
    many = {name: 32 * count for name, count in tokens.items()}
    passes = [inference(1, [2.0] * 8, tokens, task), inference(32, SLOWER, many, task)]
    table = compare(entries, ask(entries, throughput=pace(inference=passes)))
    costs = table.rows[0].costs
    assert table.baseline.costs["latency"].value == pytest.approx(latency)
    assert costs["latency"].ratio == pytest.approx(ratio)
    assert costs["latency"].low == pytest.approx(ratio)
    relative = tokens["v"] / tokens["b"]
    assert costs["inference_tokens_per_second"].ratio == pytest.approx(0.8 * relative)
    assert costs["inference_bytes"].ratio == pytest.approx(0.75)
    document = table.rows[0].to_json("m")
    assert document["latency_interval"] == [costs["latency"].low, costs["latency"].high]
    assert any(f"Inference is {'a ' if task == 'forward pass' else ''}{task}" in line for line in table.caption)
    grid = inference_grid(table)
    assert [column.name for column in grid.columns] == ["inference", "latency", "tokens/s", "memory"]
    assert grid.rows[0][1].text == f"{latency * 1e3:.3g} ms"


def test_a_store_without_inference_shows_none(entries: list[TrialEntry], ask: Ask) -> None:
    table = compare(entries, ask(entries, throughput=pace()))
    assert not has_inference(table)
    assert table.rows[0].to_json("m")["latency"] is None
    assert not any("Inference" in line for line in table.caption)
