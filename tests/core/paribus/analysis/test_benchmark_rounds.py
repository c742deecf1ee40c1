"""A report of pytest-benchmark is read whole, or refused in one sentence."""

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

from paribus.analysis.benchmark_rounds import is_report, read_report
from paribus.errors import DataError

Report = Callable[..., dict[str, Any]]


def saved(folder: Path, document: Any, name: str = "a.json") -> Path:
    path = folder / name
    path.write_text(document if isinstance(document, str) else json.dumps(document))
    return path


@pytest.mark.slow
def test_what_pytest_benchmark_writes_is_read(tmp_path: Path) -> None:
    """A real run, not a file that was written to suit."""
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


def test_contestants_that_took_turns_are_benchmarks_of_their_own(tmp_path: Path, report: Report) -> None:
    document = report(test_step=[3.0] * 4)
    document["benchmarks"][0]["extra_info"] = {"microseconds": {"ours": [1.0, 2.0], "floor": [1.0, 1.5]}}
    benchmarks = read_report(saved(tmp_path, document)).benchmarks.values()
    assert [(bench.name, bench.rounds) for bench in benchmarks] == [
        ("test_step ours", (1e-6, 2e-6)),
        ("test_step floor", (1e-6, 1.5e-6)),
    ]


def test_a_report_is_known_by_what_it_holds(tmp_path: Path, report: Report) -> None:
    assert is_report(saved(tmp_path, report(test_x=[1.0]), "0001_nightly"))
    assert is_report(saved(tmp_path, "", "a.json"))  # and is told of when it is read
    assert not is_report(saved(tmp_path, "base: bert-tiny", "study.yaml"))
    assert not is_report(saved(tmp_path, "{base: bert-tiny}", "flow.yaml"))
    assert not is_report(tmp_path)


@pytest.mark.parametrize(
    ("document", "words"),
    [
        ("", "this is no JSON"),
        ("[" * 100_000, "this is no JSON"),
        ("[]", "it has no list `benchmarks`"),
        ({"benchmarks": []}, "this report holds no benchmark"),
        ({"benchmarks": [3]}, "benchmark 0 of this report cannot be read"),
        ({"benchmarks": [{"fullname": "a", "stats": {}}]}, "benchmark 0 of this report cannot be read"),
    ],
)
def test_what_is_no_report_is_refused(tmp_path: Path, document: Any, words: str) -> None:
    with pytest.raises(DataError, match=words):
        read_report(saved(tmp_path, document))


@pytest.mark.parametrize(("wrong", "words"), [(-1.0, "a round of -1.0 s"), (float("nan"), "a round of nan s")])
def test_a_time_is_a_number_of_seconds(tmp_path: Path, report: Report, wrong: float, words: str) -> None:
    with pytest.raises(DataError, match=words):
        read_report(saved(tmp_path, report(test_x=[1.0, wrong, 1.0])))


def test_two_benchmarks_of_one_name_are_refused(tmp_path: Path, report: Report) -> None:
    document = report(test_x=[1.0])
    document["benchmarks"] *= 2
    with pytest.raises(DataError, match=r"`test_it\.py::test_x` is in this report twice"):
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
def test_whatever_stands_in_it_nothing_but_a_clear_error_comes_out(
    tmp_path_factory: pytest.TempPathFactory, report: Report, field: str, value: Any
) -> None:
    document = report(test_x=[1.0, 2.0])
    document["benchmarks"][0][field] = value
    path = saved(tmp_path_factory.getbasetemp(), document, "hostile.json")
    with suppress(DataError):
        assert read_report(path).benchmarks
