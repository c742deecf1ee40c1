"""Comparison of two sides of benchmark reports: pairing, notes, captions and gates."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.fixtures.problems import raises_problem

from paribus.analysis.benchmark_reports import read_report, read_reports
from paribus.analysis.compare_benchmarks import BenchmarkComparison, compare_benchmarks, format_interval
from paribus.analysis.gates import check_benchmarks, parse_gates
from paribus.errors import DataError, NotComparableError, SpecError
from paribus.report.latex import latex
from paribus.report.markdown import grid_markdown
from paribus.report.table_views import to_csv
from paribus.report.terminal import grid_text

Make = Callable[..., dict[str, Any]]


def timed(seed: int, scale: float = 1.0, n: int = 80) -> list[float]:
    return [float(seconds) for seconds in scale * 0.01 * np.exp(np.random.default_rng(seed).normal(0, 0.02, n))]


def table(folder: Path, *sides: Sequence[dict[str, Any]], across: bool = False) -> BenchmarkComparison:
    read = []
    for word, side in zip(("before", "after"), sides, strict=True):
        paths = [folder / word / f"{index}.json" for index in range(len(side))]
        for path, document in zip(paths, side, strict=True):
            path.parent.mkdir(exist_ok=True)
            path.write_text(json.dumps(document))
        read.append([read_report(path) for path in paths])
    return compare_benchmarks(read[0], read[1], across=across)


def test_benchmarks_are_paired_by_name_and_parameters(tmp_path: Path, report: Make) -> None:
    baseline = report(test_a=timed(0), test_gone=timed(1), test_other=timed(2))
    variant = report(commit="b" * 40, test_new=timed(3), test_a=timed(4, 1.3), test_other=timed(5))
    variant["benchmarks"][2]["params"] = {"n": 4}  # the same name for something else
    comparison = table(tmp_path, [baseline], [variant])
    assert [(row.benchmark, row.verdict) for row in comparison.rows] == [("test_a", "slower")]
    assert [note.partition(", in")[0] for note in comparison.notes] == ["Only before", "Only after"]
    assert "test_gone" in comparison.notes[0]
    assert "test_new" in comparison.notes[1]
    assert all("test_other" in note for note in comparison.notes)
    assert "commit aaaaaaaaaaaa" in comparison.header[0]
    assert "commit bbbbbbbbbbbb" in comparison.header[1]


def test_a_benchmark_that_some_runs_lack_is_named(tmp_path: Path, report: Make) -> None:
    whole = report(test_a=timed(0), test_b=timed(1))
    comparison = table(tmp_path, [whole, report(test_a=timed(2))], [whole])
    assert [row.benchmark for row in comparison.rows] == ["test_a"]
    (note,) = comparison.notes
    assert note.startswith("Not in ")
    assert "before/1.json: test_it.py::test_b" in note


def test_two_sides_without_common_items_are_refused(tmp_path: Path, report: Make) -> None:
    with raises_problem(NotComparableError, "nothing-in-common", "test_a"):
        table(tmp_path, [report(test_a=timed(0))], [report(test_b=timed(0))])


def test_without_rounds_there_is_no_interval_and_a_hint(tmp_path: Path, report: Make) -> None:
    sides = [report(test_a=timed(0)), report(test_a=timed(1, 1.5))]
    for side in sides:
        del side["benchmarks"][0]["stats"]["data"]
    comparison = table(tmp_path, sides[:1], sides[1:])
    (row,) = comparison.rows
    assert row.verdict == "inconclusive (no rounds were saved)"
    assert row.speed.ratio == pytest.approx(1.5, abs=0.02)
    assert (row.speed.low, row.speed.noise) == (None, None)
    assert "--benchmark-save-data" in comparison.caption[0]
    with raises_problem(NotComparableError, "missing-interval", "--fail-if"):
        check_benchmarks(parse_gates(["slower:5%"]), comparison)


def test_a_folder_is_a_run_for_each_report_and_runs_count_once(tmp_path: Path, report: Make) -> None:
    sides = [[report(test_a=timed(10 * side + run, scale)) for run in range(3)] for side, scale in ((0, 1.0), (1, 1.3))]
    comparison = table(tmp_path, *sides)
    (row,) = comparison.rows
    assert row.verdict == "slower"
    assert row.rounds == (240, 240)
    assert any("A run counts once, by its median (3 before, 3 after)" in line for line in comparison.caption)
    assert comparison.to_json()["before"] == str(tmp_path / "before")


def test_one_run_a_side_states_its_limits(tmp_path: Path, report: Make) -> None:
    comparison = table(tmp_path, [report(test_a=timed(0))], [report(test_a=timed(1))])
    assert any("the intervals allow for twice the variance of a run's batches" in line for line in comparison.caption)
    assert any(
        "Both sides are commit aaaaaaaaaaaa: differences below are noise" in line for line in comparison.warnings
    )


def test_extreme_interval_bounds_are_abbreviated() -> None:
    assert [format_interval(low, high) for low, high in ((0.9, 1.1), (0.0001, 22483.8))] == [
        "[0.900, 1.100]",
        "[<0.01, >100]",
    ]


def test_a_comparison_across_machines_starts_with_a_warning(tmp_path: Path, report: Make) -> None:
    other_machine = report(test_a=timed(1))
    other_machine["machine_info"]["cpu"]["count"] = 64
    with raises_problem(NotComparableError, "other-machine", "cpu.count", "2", "64"):
        table(tmp_path, [report(test_a=timed(0))], [other_machine])
    comparison = table(tmp_path, [report(test_a=timed(0))], [other_machine], across=True)
    assert comparison.warnings[0].startswith("ACROSS MACHINES")


def test_every_output_format_has_every_row(tmp_path: Path, report: Make) -> None:
    nasty = "test_a[=cmd|'x'!A0 & 50% $_{}~^\\ \x1b[31m\u202e]"
    comparison = table(tmp_path, [report(**{nasty: timed(0)})], [report(**{nasty: timed(1, 1.4)})])
    (row,) = comparison.to_json()["rows"]
    assert row["kind"] == "slower"
    assert json.loads(json.dumps(comparison.to_json(), allow_nan=False))
    shapes = [
        grid_text(comparison.grid(), 100),
        grid_markdown(comparison.grid()),
        latex(comparison.grid(), "benchmarks"),
        to_csv(comparison.grid().records),
    ]
    assert all("1.4" in shape and "slower" in shape for shape in shapes)
    assert all("\x1b" not in shape and "\u202e" not in shape for shape in shapes)
    assert all(len(line) <= 50 for line in grid_text(comparison.grid(), 50).splitlines())


def test_the_reports_of_a_folder_are_its_json_files(tmp_path: Path, report: Make) -> None:
    with raises_problem(DataError, "missing-report", "*.json"):
        read_reports(tmp_path)
    for name in ("b.json", "a.json", "notes.txt"):
        (tmp_path / name).write_text(json.dumps(report(test_a=timed(0))))
    assert [Path(run.name).name for run in read_reports(tmp_path)] == ["a.json", "b.json"]


@pytest.mark.parametrize(
    ("scale", "gate", "expected"),
    [(1.3, "slower:5%", "tripped"), (1.3, "slower:50%", "held"), (0.7, "slower:5%", "held"), (1.06, "slower:6%", "?")],
)
def test_a_gate_trips_where_the_whole_interval_is_past_it(
    tmp_path: Path, report: Make, scale: float, gate: str, expected: str
) -> None:
    comparison = table(tmp_path, [report(test_a=timed(0))], [report(test_a=timed(1, scale))])
    (check,) = check_benchmarks(parse_gates([gate]), comparison)
    assert ("tripped" if check.tripped else "?" if check.unclear else "held") == expected
    assert check.lines[0].startswith(
        f"gate {gate} " + {"tripped": "tripped", "held": "held", "?": "inconclusive"}[expected]
    )


def test_a_gate_on_a_metric_is_refused_for_benchmarks(tmp_path: Path, report: Make) -> None:
    comparison = table(tmp_path, [report(test_a=timed(0))], [report(test_a=timed(1))])
    with raises_problem(SpecError, "invalid-fail-condition", "worse:0.01"):
        check_benchmarks(parse_gates(["worse:0.01"]), comparison)
