"""Verdicts on numbers without records: those of a study with the same numbers, from any source."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from tests.fixtures.problems import raises_problem

import paribus
from paribus.analysis.compare import compare
from paribus.analysis.table import Table
from paribus.analysis.trials import ComparisonSpec, TrialEntry
from paribus.errors import DataError, SpecError

Values = Mapping[str, Mapping[int, float]]
NAN = math.nan
VALUES: Values = {
    "mha": {0: 2.410, 1: 2.441, 2: 2.402, 3: 2.433},
    "gqa": {0: 2.412, 1: 2.440, 2: 2.405, 3: 2.431},
    "local": {0: 2.38, 1: 2.40, 2: 2.37, 3: 2.395},
}


def claims(table: Table) -> list[dict[str, Any]]:
    return [{**row.claim(), "mean": row.mean, "n": row.n} for row in table.rows]


def random_values(seed: int) -> Values:
    draws = random.Random(seed)
    spread = draws.choice([0.0, 0.001, 0.02, 0.1])
    shifts = {"baseline": 0.0, "mqa": draws.choice([0.0, 0.03, -0.2]), "rmsnorm": draws.gauss(0, 0.1)}
    seeds = [draws.gauss(0, 0.1) for _ in range(6)]
    return {
        name: {number: 2 + shift + common + draws.gauss(0, spread) for number, common in enumerate(seeds)}
        for name, shift in shifts.items()
    }


@pytest.mark.parametrize("seed", range(12))
def test_verdicts_are_those_of_a_study_with_the_same_numbers(
    seed: int, study: Callable[..., list[TrialEntry]], ask: Callable[..., ComparisonSpec]
) -> None:
    values = random_values(seed)
    entries = study(**{name: list(by_seed.values()) for name, by_seed in values.items()})
    options: dict[str, Any] = {"margin": random.Random(seed).choice([None, 0.05])}
    expected = compare(entries, ask(entries, **options))
    assert claims(paribus.compare_values(values, **options)) == claims(expected)


def rows() -> list[dict[str, Any]]:
    return [{"variant": name, "seed": seed, "loss": v} for name, values in VALUES.items() for seed, v in values.items()]


def write(path: Path, kind: str) -> Path:
    file = path / f"results.{kind}"
    if kind == "jsonl":
        file.write_text("".join(json.dumps(row) + "\n" for row in rows()))
    else:
        mark = "," if kind == "csv" else "\t"
        lines = [mark.join(map(str, row)) for row in (("seed", "variant", "loss"), *map(_cells, rows()))]
        file.write_text("\ufeff" + "\n".join(lines) + "\n")
    return file


def _cells(row: Mapping[str, Any]) -> tuple[Any, ...]:
    return row["seed"], row["variant"], row["loss"]


@pytest.mark.parametrize("kind", ["csv", "tsv", "jsonl"])
def test_a_file_has_the_verdicts_of_its_rows(tmp_path: Path, kind: str) -> None:
    table = paribus.compare_values(write(tmp_path, kind), margin=0.01)
    assert claims(table) == claims(paribus.compare_values(rows(), margin=0.01))
    assert (table.study, table.metric, table.baseline.variant) == (f"results.{kind}", "loss", "mha")


def test_mappings_lists_and_data_frames_have_the_same_verdicts() -> None:
    expected = claims(paribus.compare_values(rows()))
    assert claims(paribus.compare_values(VALUES)) == expected
    assert claims(paribus.compare_values({name: list(values.values()) for name, values in VALUES.items()})) == expected
    pandas = pytest.importorskip("pandas")
    assert claims(paribus.compare_values(pandas.DataFrame(rows()))) == expected


def test_higher_may_be_better_and_the_baseline_is_chosen() -> None:
    table = paribus.compare_values(VALUES, baseline="local", better="higher")
    assert {row.variant: row.kind for row in table.rows} == {"mha": "better", "gqa": "better"}
    assert paribus.compare_values({"a": [1, 2], "baseline": [1, 3]}).baseline.variant == "baseline"


def test_outliers_are_named_by_index_or_by_seed() -> None:
    baseline, variant = [1.0, 1.1, 1.2, 1.3, 1.4], [2.0, 2.11, 2.19, 9.0, 2.4]
    assert "index 3" in paribus.verdict(baseline, variant).text
    sides = {name: dict(enumerate(side, 10)) for name, side in (("a", baseline), ("b", variant))}
    assert "seed 13" in paribus.compare_values(sides).rows[0].verdict


def test_numbers_named_accuracy_need_a_direction() -> None:
    with raises_problem(SpecError, "missing", "acc", "higher"):
        paribus.compare_values(VALUES, metric="acc")
    assert paribus.compare_values(VALUES, metric="acc", better="higher").better == "higher"


def test_numbers_are_never_certified() -> None:
    table = paribus.compare_values(VALUES, margin=0.01)
    text = " ".join(str(table).split())
    assert "✓" not in text
    assert "Not certified" in text
    assert table.to_json()["certificates"] == {}
    assert "initial weights" not in " ".join(table.caption)


def test_diverged_and_unpaired_seeds_are_named_and_make_no_claim() -> None:
    values = {"a": {0: 1.0, 1: 1.1, 2: 1.2, 3: 1.0}, "b": {0: NAN, 1: 2.1, 2: 2.3}, "c": {1: 2.0, 2: 2.2, 7: 2.1}}
    table = paribus.compare_values(values)
    by_name = {row.variant: row for row in table.rows}
    assert by_name["b"].kind == "diverged"
    assert (by_name["b"].n, by_name["b"].done, by_name["b"].planned) == (2, 2, 3)
    assert by_name["c"].n == 2
    assert table.notes == (
        "b: 3 common seeds; unpaired: seed 3 of a",
        "c: 2 common seeds; unpaired: seed 7 of c, seed 0, 3 of a",
    )
    assert not table.ok


def test_a_verdict_is_that_of_a_table_with_one_variant() -> None:
    baseline, variant = (list(VALUES[name].values()) for name in ("mha", "local"))
    verdict = paribus.verdict(baseline, variant, margin=0.01)
    (row,) = paribus.compare_values({"mha": baseline, "local": variant}, margin=0.01).rows
    assert (verdict.kind, verdict.low, verdict.high, verdict.p) == (row.kind, row.low, row.high, row.p)
    assert paribus.verdict([1.0, 1.1], [NAN, 1.0]).kind == "diverged"


@pytest.mark.parametrize(
    ("values", "code", "words"),
    [
        ([{"variant": "a", "loss": 1}], "invalid-table", ("column `seed`", "variant, loss")),
        ([{"variant": "a", "seed": 0}], "invalid-table", ("no column of a metric",)),
        ([{"variant": "a", "seed": 0, "x": 1, "y": 2}], "invalid-table", ("several columns: x, y",)),
        ([{"variant": "a", "seed": 0.5, "x": 1}], "invalid-line", ("row 0", "`seed` is 0.5")),
        ([{"variant": "a", "seed": 0, "x": "bad"}], "invalid-line", ("row 0", "`x` is 'bad'")),
        ([{"variant": "a", "seed": 0, "x": True}], "invalid-line", ("row 0", "`x` is True")),
        ([{"variant": " ", "seed": 0, "x": 1}], "invalid-line", ("row 0", "no variant")),
        (2 * [{"variant": "a", "seed": 0, "x": 1}], "invalid-line", ("row 1", "seed 0 already")),
        ([], "invalid-table", ("no row",)),
        ({}, "invalid-table", ("no variant",)),
        ({"a": ["x"], "b": [1]}, "invalid-table", ("values of `a`",)),
    ],
)
def test_a_wrong_table_is_an_error_that_names_the_row(values: Any, code: str, words: tuple[str, ...]) -> None:
    with raises_problem(DataError, code, *words):
        paribus.compare_values(values)


@pytest.mark.parametrize(
    ("options", "code", "words"),
    [
        ({"better": "more"}, "bad-value", ("'more'",)),
        ({"margin": 0.0}, "out-of-range", ("margin",)),
        ({"margin": NAN}, "out-of-range", ("margin",)),
        ({"alpha": 1.0}, "out-of-range", ("alpha",)),
        ({"baseline": "mhaa"}, "unknown-variant", ("mhaa", "mha, gqa, local")),
    ],
)
def test_a_wrong_option_is_an_error(options: dict[str, Any], code: str, words: tuple[str, ...]) -> None:
    with raises_problem(SpecError, code, *words):
        paribus.compare_values(VALUES, **options)


def test_values_that_cannot_be_paired_are_refused() -> None:
    with raises_problem(SpecError, "unpaired", "2 values", "3"):
        paribus.verdict([1.0, 2.0], [1.0, 2.0, 3.0])
    with raises_problem(SpecError, "no-variant", "one variant"):
        paribus.compare_values({"a": [1.0, 2.0]})


def test_open_ended_verdicts_are_the_same_of_a_table_and_of_one_variant() -> None:
    baseline, variant = list(VALUES["mha"].values()), list(VALUES["local"].values())
    table = paribus.compare_values({"mha": baseline, "local": variant}, open_ended=True)
    verdict = paribus.verdict(baseline, variant, open_ended=True)
    assert (table.rows[0].low, table.rows[0].high) == (verdict.low, verdict.high)
    fixed = paribus.verdict(baseline, variant)
    assert None not in (fixed.low, verdict.low)
    assert (verdict.low or 0) < (fixed.low or 0) < (fixed.high or 0) < (verdict.high or 0)
