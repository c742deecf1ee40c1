"""`paribus compare-benchmarks` and `compare-trials`; `compare` is tested in test_run.py."""

import csv
import io
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from paribus.errors import EXIT_DATA, EXIT_FAILED, EXIT_NOT_COMPARABLE, EXIT_OK, EXIT_SPEC


@pytest.fixture(name="report")
def _report() -> Callable[..., None]:
    def write(name: str, scale: float = 1.0, cores: int = 2, seed: int = 0) -> None:
        rounds = scale * 0.01 * np.exp(np.random.default_rng(seed).normal(0, 0.02, 80))
        document = {
            "machine_info": {"cpu": {"count": cores}},
            "commit_info": {"id": "a" * 40, "dirty": True},
            "benchmarks": [
                {
                    "name": "test_a",
                    "fullname": "test_it.py::test_a",
                    "params": None,
                    "options": {"timer": "perf_counter"},
                    "stats": {"median": 0.01, "rounds": 80, "data": list(rounds)},
                }
            ],
        }
        Path(name).write_text(json.dumps(document))

    return write


def test_two_reports_are_compared_in_every_format(cli: Callable[..., Any], report: Callable[..., None]) -> None:
    report("a.json")
    report("b.json", 1.3, seed=1)
    result = cli("compare-benchmarks", "a.json", "b.json")
    assert (result.code, result.err) == (EXIT_OK, "")
    assert "test_a" in result.out
    assert "slower" in result.out
    (row,) = json.loads(cli("compare-benchmarks", "a.json", "b.json", "--json").out)["rows"]
    assert {"benchmark", "metric", "n", "ratio", "low", "high", "verdict"} <= set(row)
    assert row["low"] < 1.3 < row["high"]
    (record,) = csv.DictReader(io.StringIO(cli("compare-benchmarks", "a.json", "b.json", "--csv").out))
    assert float(record["ratio"]) == row["ratio"]
    assert r"\toprule" in cli("compare-benchmarks", "a.json", "b.json", "--latex").out
    assert "| `test_a` |" in cli("compare-benchmarks", "a.json", "b.json", "--markdown").out


def test_columns_are_chosen_in_every_format(cli: Callable[..., Any], report: Callable[..., None]) -> None:
    report("a.json")
    report("b.json", 1.3, seed=1)
    chosen = ("--columns", "verdict, benchmark")
    assert (
        "| **slower** | `test_a` |"
        in cli("compare-benchmarks", "a.json", "b.json", "--markdown", *chosen).out.splitlines()
    )
    assert "verdict & benchmark" in cli("compare-benchmarks", "a.json", "b.json", "--latex", *chosen).out
    assert ["slower", "test_a"] in [
        line.split() for line in cli("compare-benchmarks", "a.json", "b.json", *chosen).out.splitlines()
    ]
    csv_text = cli("compare-benchmarks", "a.json", "b.json", "--csv", "--columns", "benchmark,ratio").out
    assert csv_text.splitlines()[0] == "benchmark,ratio"


def test_an_unknown_column_is_one_clear_line(cli: Callable[..., Any], report: Callable[..., None]) -> None:
    report("a.json")
    for shape in (["--markdown"], ["--latex"], ["--csv"], []):
        result = cli("compare-benchmarks", "a.json", "a.json", *shape, "--columns", "benchmark,verdct")
        assert (result.code, result.out) == (EXIT_SPEC, "")
        assert "error[unknown-column] columns" in result.err
        assert '"verdct"; did you mean "verdict"? valid: benchmark, ' in result.err
        assert result.err.count("\n") == 1
    result = cli("compare-benchmarks", "a.json", "a.json", "--json", "--columns", "verdict")
    assert result.code == EXIT_SPEC


def test_a_tripped_gate_exits_with_1_and_a_reason(cli: Callable[..., Any], report: Callable[..., None]) -> None:
    report("a.json")
    report("b.json", 1.3, seed=1)
    result = cli("compare-benchmarks", "a.json", "b.json", "--fail-if", "slower:5%", "--fail-if", "slower:90%")
    assert result.code == EXIT_FAILED
    assert "gate slower:5% tripped: test_a: 1.2" in result.err
    assert "gate slower:90% held" in result.err
    result = cli("compare-benchmarks", "b.json", "a.json", "--fail-if", "slower:5%", "--json")
    assert result.code == EXIT_OK
    assert json.loads(result.out)["gates"] == [{"gate": "slower:5%", "tripped": [], "inconclusive": []}]


def test_reports_of_different_machines_exit_with_6_unless_accepted(
    cli: Callable[..., Any], report: Callable[..., None]
) -> None:
    report("a.json")
    report("b.json", cores=64)
    result = cli("compare-benchmarks", "a.json", "b.json")
    assert result.code == EXIT_NOT_COMPARABLE
    assert result.err.startswith("error[other-machine]: a.json and b.json ")
    assert "cpu.count 2 against 64" in result.err
    result = cli("compare-benchmarks", "a.json", "b.json", "--across-machines")
    assert result.code == EXIT_OK
    assert "ACROSS MACHINES" in result.out


@pytest.mark.parametrize(
    ("words", "code", "problem", "value"),
    [
        (["compare-benchmarks", "a.json"], EXIT_SPEC, "usage", "'AFTER'"),
        (["compare-benchmarks", "a.json", "none.json"], EXIT_DATA, "missing-report", "(none.json)"),
        (["compare-benchmarks", "a.json", "bad.json"], EXIT_DATA, "missing-report", "(bad.json)"),
        (["compare-benchmarks", "a.json", "folder"], EXIT_DATA, "missing-report", "(folder)"),
        (
            ["compare-benchmarks", "a.json", "a.json", "--fail-if", "slower"],
            EXIT_SPEC,
            "invalid-fail-condition",
            "--fail-if",
        ),
        (["compare-benchmarks", "a.json", "a.json", "--strict"], EXIT_SPEC, "usage", "--strict"),
        (["compare-trials", "a", "b", "--strict", "--across-machines"], EXIT_SPEC, "usage", "--across-machines"),
        (["compare", "quickstart", "other"], EXIT_SPEC, "usage", "(other)"),
        (["compare", "a.json"], EXIT_SPEC, "unknown-study", '"a.json"'),
        (["compare", "quickstart", "--csv", "--latex"], EXIT_SPEC, "usage", "--latex and --csv"),
    ],
)
def test_bad_input_is_one_clear_line(
    cli: Callable[..., Any], report: Callable[..., None], words: list[str], code: int, problem: str, value: str
) -> None:
    report("a.json")
    Path("bad.json").write_text("{")
    Path("folder").mkdir()
    result = cli(*words)
    assert result.code == code
    assert result.err.startswith(f"error[{problem}]")
    assert value in result.err
    assert result.err.count("\n") == 1
    assert result.out == ""


def test_reports_are_compared_without_torch_or_numpy(
    report: Callable[..., None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    report("a.json")
    code = (
        "import sys; from paribus.cli.main import main; code = main(['compare-benchmarks', 'a.json', 'a.json']);"
        "heavy = {'torch', 'lightning', 'scipy', 'numpy'} & set(sys.modules);"
        "sys.exit(f'imported {heavy}' if heavy else code)"
    )
    process = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert process.returncode == EXIT_OK, process.stderr


def test_an_unknown_trial_is_one_clear_line(cli: Callable[..., Any]) -> None:
    result = cli("compare-trials", "here", "there")
    assert result.code == EXIT_SPEC
    assert result.err.startswith("error[usage]: ")
    assert "`here`" in result.err
    assert result.err.count("\n") == 1


@pytest.mark.usefixtures("trials_in_this_process")
def test_sets_of_trials_have_verdicts_and_two_trials_have_none(
    cli: Callable[..., Any], write_study: Callable[..., Path]
) -> None:
    assert cli("run", str(write_study())).code == EXIT_OK
    result = cli("compare-trials", "mine", "runs/mine", "--metric", "val/mlm/loss", "--fail-if", "worse:0.01", "--json")
    assert result.code == EXIT_OK
    document = json.loads(result.out)
    assert {(row["verdict"], row["n"]) for row in document["rows"]} == {("the same, to the bit", 2)}
    assert document["gates"] == [{"gate": "worse:0.01", "tripped": [], "inconclusive": []}]
    first, second, *_ = sorted(path.name for path in Path("runs/mine").iterdir() if (path / "record.json").is_file())
    assert "One seed on each side" in cli("compare-trials", first, f"runs/mine/{second}", "--across-machines").out
    for option, value in (("--fail-if", "worse:0.01"), ("--metric", "val/mlm/loss")):
        refused = cli("compare-trials", first, second, option, value)
        assert refused.code == EXIT_NOT_COMPARABLE
        assert refused.err.startswith(f"error[missing-interval] {option}: ")
