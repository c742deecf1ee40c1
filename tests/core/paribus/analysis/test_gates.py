"""Gates: syntax, and the tables that trip them."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from tests.fixtures.problems import raises_problem

from paribus.analysis.compare import compare
from paribus.analysis.gates import check_study, check_table, parse_gates
from paribus.analysis.trials import ComparisonSpec, TrialEntry
from paribus.errors import SpecError

Make = Callable[..., TrialEntry]
Ask = Callable[..., ComparisonSpec]
Study = Callable[..., list[TrialEntry]]
BASE = [2.00, 2.10, 1.90, 2.05, 1.95]


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("slower", ("slower",)),
        ("", ("``",)),
        ("slowr:5%", ("slowr", "slower")),
        ("slower:5", ("`slower:5`", "`slower:5%`")),
        ("worse:5%", ("worse:5%",)),
        ("worse:much", ("worse:much",)),
        ("worse:-1", ("worse:-1",)),
        ("worse:nan", ("worse:nan",)),
        ("worse:inf", ("worse:inf",)),
    ],
)
def test_an_invalid_gate_is_refused_with_an_example(text: str, values: tuple[str, ...]) -> None:
    with raises_problem(SpecError, "invalid-fail-condition", *values):
        parse_gates([text])


def test_all_wrong_gates_are_reported_at_once() -> None:
    with raises_problem(SpecError, "invalid-fail-condition", "slower") as caught:
        parse_gates(["slower", "worse:0.1", "worse:x"])
    assert len(caught.value.problems) == 2


def test_gates_are_parsed() -> None:
    assert [(gate.kind, gate.limit) for gate in parse_gates(["slower:5%", " worse : 0.01 ", "slower=2.5 %"])] == [
        ("slower", 0.05),
        ("worse", 0.01),
        ("slower", 0.025),
    ]


@pytest.mark.parametrize("better", ["lower", "higher"])
@pytest.mark.parametrize(("limit", "expected"), [(0.1, "past"), (0.52, "unclear"), (1.0, "held")])
def test_a_variant_trips_if_its_whole_interval_is_worse(
    study: Study, ask: Ask, better: str, limit: float, expected: str
) -> None:
    sign = 1 if better == "lower" else -1
    entries = study(baseline=BASE, mqa=[value + sign * (0.5 + seed / 100) for seed, value in enumerate(BASE)])
    (check,) = check_table(parse_gates([f"worse:{limit}"]), compare(entries, ask(entries, better=better)))
    assert ("past" if check.tripped else "unclear" if check.unclear else "held") == expected
    assert check.to_json()["gate"] == f"worse:{limit:g}"


def test_a_better_variant_never_trips(study: Study, ask: Ask) -> None:
    entries = study(baseline=BASE, mqa=[value - 0.5 - seed / 100 for seed, value in enumerate(BASE)])
    (check,) = check_table(parse_gates(["worse:0"]), compare(entries, ask(entries)))
    assert check.lines == ["gate worse:0 held"]


def test_diverged_and_withheld_variants_are_inconclusive(study: Study, ask: Ask, make: Make) -> None:
    entries = study(baseline=BASE, mqa=["diverged", *BASE[1:]])
    entries += [make("same", seed, varied={"dropout": 0.0}, loss=2.0) for seed in range(5)]
    (check,) = check_table(parse_gates(["worse:0.01"]), compare(entries, ask(entries)))
    assert not check.tripped
    assert [line.partition(":")[0] for line in check.unclear] == ["mqa", "same"]


def timed(make: Make, variant: str, varied: dict[str, Any], seconds: list[float], **edits: Any) -> list[TrialEntry]:
    return [
        make(
            variant,
            seed,
            varied=varied,
            loss=2.0 + seed / 50,
            edits={
                "provenance/training_seconds": training_seconds,
                **{f"provenance/{key}": value for key, value in edits.items()},
            },
        )
        for seed, training_seconds in enumerate(seconds)
    ]


def test_slower_compares_seconds_per_token(make: Make, ask: Ask) -> None:
    entries = timed(make, "baseline", {}, [2.0, 2.1, 1.9]) + timed(make, "mqa", {"attention": "mqa"}, [3.0, 3.1, 2.9])
    table = compare(entries, ask(entries))
    assert check_table(parse_gates(["slower:20%"]), table)[0].tripped
    assert check_table(parse_gates(["slower:80%"]), table)[0].lines == ["gate slower:80% held"]


@pytest.mark.parametrize(("key", "value", "words"), [("contended", True, "shared"), ("host", "there", "shared")])
def test_contended_speed_is_inconclusive(make: Make, ask: Ask, key: str, value: Any, words: str) -> None:
    entries = timed(make, "baseline", {}, [2.0, 2.1, 1.9])
    entries += timed(make, "mqa", {"attention": "mqa"}, [3.0, 3.1, 2.9], **{key: value})
    (check,) = check_table(parse_gates(["slower:20%"]), compare(entries, ask(entries)))
    assert not check.tripped
    assert words in check.unclear[0]


def test_every_setting_of_a_study_is_checked(study: Study, ask: Ask) -> None:
    """The same twice: matched in two ways, each row says which way it is of."""
    entries = study(baseline=BASE, mqa=[value + 0.5 + seed / 100 for seed, value in enumerate(BASE)])
    table = compare(entries, ask(entries))
    combined = replace(table, setting="params", other_settings=(replace(table, setting="flops"),))
    (check,) = check_study(parse_gates(["worse:0.1"]), combined)
    assert [line.split(":")[:2] for line in check.tripped] == [["params", " mqa"], ["flops", " mqa"]]
    assert check_study(parse_gates(["worse:0.1"]), table)[0].tripped[0].startswith("mqa: ")
