"""`paribus compare`, as its user sees it; what it says of a study is tested where studies run."""

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


def test_two_reports_are_compared_in_every_shape(cli: Callable[..., Any], report: Callable[..., None]) -> None:
    report("a.json")
    report("b.json", 1.3, seed=1)
    said = cli("compare", "a.json", "b.json")
    assert (said.code, said.err) == (EXIT_OK, "")
    assert "test_a" in said.out
    assert "slower" in said.out
    (row,) = json.loads(cli("compare", "a.json", "b.json", "--json").out)["rows"]
    assert {"benchmark", "metric", "n", "ratio", "low", "high", "verdict"} <= set(row)
    assert row["low"] < 1.3 < row["high"]
    (record,) = csv.DictReader(io.StringIO(cli("compare", "a.json", "b.json", "--csv").out))
    assert float(record["ratio"]) == row["ratio"]
    assert r"\toprule" in cli("compare", "a.json", "b.json", "--latex").out
    assert "| `test_a` |" in cli("compare", "a.json", "b.json", "--markdown").out


def test_a_gate_ends_with_1_and_says_why(cli: Callable[..., Any], report: Callable[..., None]) -> None:
    report("a.json")
    report("b.json", 1.3, seed=1)
    said = cli("compare", "a.json", "b.json", "--fail-if", "slower:5%", "--fail-if", "slower:90%")
    assert said.code == EXIT_FAILED
    assert "gate slower:5% tripped: test_a: 1.2" in said.err
    assert "gate slower:90% held" in said.err
    said = cli("compare", "b.json", "a.json", "--fail-if", "slower:5%", "--json")
    assert said.code == EXIT_OK
    assert json.loads(said.out)["gates"] == [{"gate": "slower:5%", "tripped": [], "inconclusive": []}]


def test_what_cannot_be_compared_ends_with_6_unless_it_was_asked_for(
    cli: Callable[..., Any], report: Callable[..., None]
) -> None:
    report("a.json")
    report("b.json", cores=64)
    said = cli("compare", "a.json", "b.json")
    assert said.code == EXIT_NOT_COMPARABLE
    assert said.err.startswith("error[other-machine]: a.json and b.json do not share a machine: cpu.count 2 against 64")
    said = cli("compare", "a.json", "b.json", "--across-machines")
    assert said.code == EXIT_OK
    assert "ACROSS MACHINES" in said.out


@pytest.mark.parametrize(
    ("words", "code", "expected"),
    [
        (["a.json"], EXIT_SPEC, "expected two benchmark reports, got one"),
        (["a.json", "none.json"], EXIT_DATA, "there is no such file"),
        (["a.json", "bad.json"], EXIT_DATA, "this is no JSON"),
        (["a.json", "a.json", "--fail-if", "slower"], EXIT_SPEC, "error[no-gate] --fail-if: `slower` is no gate"),
    ],
)
def test_bad_input_is_one_clear_line(
    cli: Callable[..., Any], report: Callable[..., None], words: list[str], code: int, expected: str
) -> None:
    report("a.json")
    Path("bad.json").write_text("{")
    said = cli("compare", *words)
    assert said.code == code
    assert expected in said.err
    assert said.err.count("\n") == 1
    assert said.out == ""


def test_reports_are_compared_without_torch_or_numpy(
    report: Callable[..., None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    report("a.json")
    code = (
        "import sys; from paribus.cli.main import main; code = main(['compare', 'a.json', 'a.json']);"
        "heavy = {'torch', 'lightning', 'scipy', 'numpy'} & set(sys.modules);"
        "sys.exit(f'imported {heavy}' if heavy else code)"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert found.returncode == EXIT_OK, found.stderr


def test_trials_are_compared_and_what_is_none_is_one_clear_line(cli: Callable[..., Any]) -> None:
    said = cli("compare", "here", "there")
    assert said.code == EXIT_SPEC
    assert said.err.startswith(
        "error[usage]: expected a trial, a folder of trials or a benchmark report, got `here`; valid:"
    )
    assert said.err.count("\n") == 1
