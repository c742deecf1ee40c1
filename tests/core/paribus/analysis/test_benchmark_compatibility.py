"""Only reports of one machine, one set of versions and one clock are compared without a warning."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from paribus.analysis.benchmark_rounds import Report, check_same_machine, read_report
from paribus.errors import NotComparableError

Make = Callable[..., dict[str, Any]]


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
def test_each_is_refused_by_its_name_and_shown_under_a_banner(
    tmp_path: Path, report: Make, place: str, value: Any, code: str, words: str
) -> None:
    sides = [
        read(tmp_path, "a.json", report(test_x=[1.0])),
        read(tmp_path, "b.json", changed(report(test_x=[1.0]), place, value)),
    ]
    with pytest.raises(NotComparableError, match=code) as caught:
        check_same_machine(sides)
    (problem,) = caught.value.problems
    assert problem.code == code
    assert words in problem.message
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
    with pytest.raises(NotComparableError, match="other-machine") as caught:
        check_same_machine(sides)
    assert [problem.code for problem in caught.value.problems] == ["other-machine", "other-versions"]


def test_a_clock_rate_is_no_difference_and_another_host_of_the_same_kind_is_told(tmp_path: Path, report: Make) -> None:
    other_rate = changed(report(test_x=[1.0]), "machine_info/cpu/hz_actual", [2, 0])
    other_host = changed(report(test_x=[1.0]), "machine_info/node", "there")
    baseline = read(tmp_path, "a.json", report(test_x=[1.0]))
    assert check_same_machine([baseline, read(tmp_path, "b.json", other_rate)]) == []
    (warning,) = check_same_machine([baseline, read(tmp_path, "c.json", other_host)])
    assert "only look alike: node here against there" in warning


def test_the_version_of_what_is_measured_may_differ(tmp_path: Path, report: Make) -> None:
    """It is what changed between two commits of it."""
    sides = [changed(report(test_x=[1.0]), "machine_info/versions", {"mine": version}) for version in ("1", "2")]
    assert check_same_machine([read(tmp_path, f"{index}.json", side) for index, side in enumerate(sides)]) == []
