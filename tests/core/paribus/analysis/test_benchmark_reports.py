"""Reports of pytest-benchmark: reading, refusals, and the check that two reports are of one machine."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.fixtures.problems import raises_problem

from paribus.analysis.benchmark_reports import Report, check_same_machine, read_report
from paribus.errors import DataError, NotComparableError

Make = Callable[..., dict[str, Any]]


def saved(folder: Path, document: Any, name: str = "a.json") -> Path:
    path = folder / name
    path.write_text(document if isinstance(document, str) else json.dumps(document))
    return path


@pytest.mark.slow
def test_reports_of_pytest_benchmark_are_read(tmp_path: Path) -> None:
    """Use the report of a real run."""
    (tmp_path / "test_it.py").write_text(
        "import pytest\n@pytest.mark.parametrize('n', [3, 4])\n"
        "def test_sum(benchmark, n):\n    benchmark.pedantic(lambda: sum(range(n)), rounds=7, iterations=2)\n"
    )
    path = tmp_path / "out.json"
    plugins = ["-p", "no:cacheprovider", "-p", "no:xdist", "-q", f"--benchmark-json={path}", "--benchmark-quiet"]
    command = [sys.executable, "-m", "pytest", *plugins, "test_it.py"]
    environment = {
        key: value for key, value in os.environ.items() if not key.startswith("PYTEST_XDIST")
    }  # else it times nothing
    subprocess.run(command, cwd=tmp_path, env=environment, check=True, timeout=120)
    parsed = read_report(path)
    assert [bench.full_name for bench in parsed.benchmarks.values()] == [
        "test_it.py::test_sum[3]",
        "test_it.py::test_sum[4]",
    ]
    assert all(len(bench.rounds) == bench.count == 7 for bench in parsed.benchmarks.values())
    assert all(bench.clock == "perf_counter, gc on" for bench in parsed.benchmarks.values())
    document = json.loads(path.read_text())
    assert parsed.benchmarks[next(iter(parsed.benchmarks))].rounds == tuple(document["benchmarks"][0]["stats"]["data"])


def test_contestants_in_turns_are_separate_benchmarks(tmp_path: Path, report: Make) -> None:
    document = report(test_step=[3.0] * 4)
    document["benchmarks"][0]["extra_info"] = {"microseconds": {"ours": [1.0, 2.0], "floor": [1.0, 1.5]}}
    benchmarks = read_report(saved(tmp_path, document)).benchmarks.values()
    assert [(bench.name, bench.rounds) for bench in benchmarks] == [
        ("test_step ours", (1e-6, 2e-6)),
        ("test_step floor", (1e-6, 1.5e-6)),
    ]


@pytest.mark.parametrize(
    ("document", "value"),
    [
        ("", "JSON"),
        ("[" * 100_000, "JSON"),
        ("[]", "benchmarks"),
        ({"benchmarks": []}, "a.json"),
        ({"benchmarks": [3]}, "0"),
        ({"benchmarks": [{"fullname": "a", "stats": {}}]}, "0"),
    ],
)
def test_files_that_are_not_reports_are_refused(tmp_path: Path, document: Any, value: str) -> None:
    with raises_problem(DataError, "missing-report", value):
        read_report(saved(tmp_path, document))


@pytest.mark.parametrize(("wrong", "value"), [(-1.0, "-1.0"), (float("nan"), "nan")])
def test_a_time_is_a_number_of_seconds(tmp_path: Path, report: Make, wrong: float, value: str) -> None:
    with raises_problem(DataError, "missing-report", value):
        read_report(saved(tmp_path, report(test_x=[1.0, wrong, 1.0])))


def test_two_benchmarks_of_one_name_are_refused(tmp_path: Path, report: Make) -> None:
    document = report(test_x=[1.0])
    document["benchmarks"] *= 2
    with raises_problem(DataError, "missing-report", "test_it.py::test_x"):
        read_report(saved(tmp_path, document))


JSON = st.recursive(
    st.none() | st.booleans() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)


@settings(max_examples=40)
@given(
    field=st.sampled_from(["name", "fullname", "params", "extra_info", "options", "stats"]),
    value=JSON,
)
def test_any_malformed_report_raises_a_data_error(
    tmp_path_factory: pytest.TempPathFactory, report: Make, field: str, value: Any
) -> None:
    document = report(test_x=[1.0, 2.0])
    document["benchmarks"][0][field] = value
    path = saved(tmp_path_factory.getbasetemp(), document, "hostile.json")
    with suppress(DataError):
        assert read_report(path).benchmarks


def read(folder: Path, name: str, document: dict[str, Any]) -> Report:
    path = folder / name
    path.write_text(json.dumps(document))
    return read_report(path)


def changed(document: dict[str, Any], place: str, value: Any) -> dict[str, Any]:
    node: Any = document
    *parents, leaf = place.split("/")
    for key in parents:
        node = node[int(key) if isinstance(node, list) else key]
    node[leaf] = value
    return document


@pytest.mark.parametrize(
    ("place", "value", "code", "words"),
    [
        ("machine_info/cpu/brand_raw", "another", "other-machine", "cpu.brand_raw a processor against another"),
        ("machine_info/cpu/count", 8, "other-machine", "cpu.count 2 against 8"),
        ("machine_info/python_version", "3.12.1", "other-versions", "python_version 3.11.7 against 3.12.1"),
        ("version", "4.0", "other-versions", "pytest-benchmark 5.3.1 against 4.0"),
        ("machine_info/versions", {"torch": "2.13"}, "other-versions", "versions.torch none against 2.13"),
        ("benchmarks/0/options/timer", "process_time", "other-clock", "perf_counter, gc on against process_time"),
        ("benchmarks/0/options/disable_gc", True, "other-clock", "gc on against perf_counter, gc off"),
    ],
)
def test_differing_reports_are_refused_or_shown_with_a_warning(
    tmp_path: Path, report: Make, place: str, value: Any, code: str, words: str
) -> None:
    sides = [
        read(tmp_path, "a.json", report(test_x=[1.0])),
        read(tmp_path, "b.json", changed(report(test_x=[1.0]), place, value)),
    ]
    with raises_problem(NotComparableError, code, words) as caught:
        check_same_machine(sides)
    (problem,) = caught.value.problems
    assert "--across-machines" in problem.valid
    (banner,) = check_same_machine(sides, across=True)
    assert banner.startswith("ACROSS MACHINES")
    assert words in banner


def test_all_differences_of_machines_are_reported_at_once(tmp_path: Path, report: Make) -> None:
    other_machine = changed(report(test_x=[1.0]), "machine_info/cpu/count", 8)
    sides = [
        read(tmp_path, "a.json", report(test_x=[1.0])),
        read(tmp_path, "b.json", changed(other_machine, "version", "4.0")),
    ]
    with raises_problem(NotComparableError, "other-machine", "cpu.count", "2", "8") as caught:
        check_same_machine(sides)
    assert [problem.code for problem in caught.value.problems] == ["other-machine", "other-versions"]


def test_clock_rates_are_ignored_and_other_hosts_get_a_warning(tmp_path: Path, report: Make) -> None:
    other_rate = changed(report(test_x=[1.0]), "machine_info/cpu/hz_actual", [2, 0])
    other_host = changed(report(test_x=[1.0]), "machine_info/node", "there")
    baseline = read(tmp_path, "a.json", report(test_x=[1.0]))
    assert check_same_machine([baseline, read(tmp_path, "b.json", other_rate)]) == []
    (warning,) = check_same_machine([baseline, read(tmp_path, "c.json", other_host)])
    assert "same hardware: node here against there" in warning


def test_the_version_of_the_measured_project_may_differ(tmp_path: Path, report: Make) -> None:
    """Compare reports of two commits of one project."""
    sides = [changed(report(test_x=[1.0]), "machine_info/versions", {"mine": version}) for version in ("1", "2")]
    assert check_same_machine([read(tmp_path, f"{index}.json", side) for index, side in enumerate(sides)]) == []
