"""A new attention needs one file and one line: every command, test and benchmark includes it."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PLUGIN = Path("plugins/paribus_attention")
LINE = "from paribus_attention.newcomers_query import GroupedQuery as newcomer\n"
STUDY = """
base: {preset: encoder-tiny, dims.width: 8, dims.layers: 1, dims.heads: 2, dims.length: 16, data.batch: 4}
vary: {attention: [{name: newcomer, kv_heads: 1}]}
seeds: 2
budget: {steps: 3}
metric: val/mlm/loss
"""


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Copy of the repository with a new attention: one file, and one line that registers it."""
    folder = tmp_path_factory.mktemp("newcomer")
    git = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    tracked_files = subprocess.run(git, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    for name in filter(None, tracked_files.split("\0")):
        if (ROOT / name).is_file():  # git lists deleted files too
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, folder / name)
    shutil.copy(folder / PLUGIN / "grouped_query.py", folder / PLUGIN / "newcomers_query.py")
    init = folder / PLUGIN / "__init__.py"
    original = init.read_text()
    registered = next(line for line in original.splitlines(keepends=True) if line.startswith("from paribus_attention."))
    init.write_text(original.replace(registered, registered + LINE, 1))
    assert len(init.read_text().splitlines()) == len(original.splitlines()) + 1
    return folder


def run(checkout: Path, *words: str) -> str:
    """Run a command in the checkout, with its sources; return its output."""
    path = os.pathsep.join(str(checkout / root) for root in ("core", "plugins"))
    variables = {
        name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")
    }  # including those of xdist
    environment = {**variables, "PYTHONPATH": path}
    command = [sys.executable, "-m", *words]
    process = subprocess.run(command, cwd=checkout, env=environment, capture_output=True, text=True, check=False)
    assert process.returncode == 0, process.stdout + process.stderr
    return process.stdout


def paribus(checkout: Path, *words: str) -> str:
    return run(checkout, "paribus", *words)


@pytest.mark.thorough
def test_a_new_attention_is_listed_and_explained(checkout: Path) -> None:
    rows = json.loads(paribus(checkout, "list", "attention", "--json"))
    assert {row["name"] for row in rows} >= {"newcomer", "gqa", "mha"}
    output = paribus(checkout, "explain", "attention.newcomer")
    assert "kv_heads" in output
    assert str(checkout / PLUGIN / "newcomers_query.py") in output


@pytest.mark.thorough
def test_a_new_attention_is_checked(checkout: Path) -> None:
    overrides = ["attention=newcomer", "attention.kv_heads=2"]
    document = json.loads(paribus(checkout, "check", "gpt-tiny", *overrides, "--json"))
    assert document["spec"]["attention"]["name"] == "newcomer"


@pytest.mark.slow
def test_a_new_attention_is_tested(checkout: Path) -> None:
    tests = [
        "tests/core/paribus/testing/test_conform.py",
        "-q",
        "-p",
        "no:cacheprovider",
        "-m",
        "",
        "-k",
        "attention.newcomer",
    ]
    assert "2 passed" in run(checkout, "pytest", *tests)


@pytest.mark.thorough
def test_a_new_attention_is_benchmarked(checkout: Path) -> None:
    collect = ["benchmarks/bench_attention.py", "-o", "python_files=bench_*.py", "--collect-only", "-q"]
    output = run(checkout, "pytest", *collect, "-p", "no:cacheprovider", "-k", "newcomer")
    assert "test_time_of_each[newcomer]" in output


@pytest.mark.thorough
def test_a_new_attention_is_in_the_table_of_components(checkout: Path) -> None:
    subprocess.run(
        [sys.executable, "docs/components.py"],
        cwd=checkout,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(str(checkout / root) for root in ("core", "plugins"))},
        check=True,
    )
    assert "| `newcomer` |" in (checkout / "docs" / "components.md").read_text()


@pytest.mark.slow
def test_a_new_attention_is_ablated(checkout: Path, tmp_path: Path) -> None:
    (tmp_path / "study.yaml").write_text(STUDY)
    words = ["run", str(tmp_path / "study.yaml"), "--store", str(tmp_path / "runs"), "--jobs", "2", "--json"]
    (row,) = [row for row in json.loads(paribus(checkout, *words))["rows"] if "newcomer" in row["variant"]]
    assert row["n"] == 2
    assert row["verdict"]
