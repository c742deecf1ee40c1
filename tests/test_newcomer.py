"""A newcomer copies one file and adds one line; all else picks the new attention up by itself."""

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
    """What a clone has, with the newcomer's file and line in it."""
    folder = tmp_path_factory.mktemp("newcomer")
    git = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    listed = subprocess.run(git, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    for name in filter(None, listed.split("\0")):
        if (ROOT / name).is_file():  # one that was deleted is still listed
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, folder / name)
    shutil.copy(folder / PLUGIN / "grouped_query.py", folder / PLUGIN / "newcomers_query.py")
    init = folder / PLUGIN / "__init__.py"
    before = init.read_text()
    registered = next(line for line in before.splitlines(keepends=True) if line.startswith("from paribus_attention."))
    init.write_text(before.replace(registered, registered + LINE, 1))
    assert len(init.read_text().splitlines()) == len(before.splitlines()) + 1
    return folder


def run(checkout: Path, *words: str) -> str:
    """What a command says, run from the checkout and on its sources."""
    path = os.pathsep.join(str(checkout / root) for root in ("core", "plugins"))
    ours = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}  # xdist's as well
    environment = {**ours, "PYTHONPATH": path}
    command = [sys.executable, "-m", *words]
    done = subprocess.run(command, cwd=checkout, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def paribus(checkout: Path, *words: str) -> str:
    return run(checkout, "paribus", *words)


def test_it_is_listed_and_explained(checkout: Path) -> None:
    rows = json.loads(paribus(checkout, "list", "attention", "--json"))
    assert {row["name"] for row in rows} >= {"newcomer", "gqa", "mha"}
    said = paribus(checkout, "explain", "attention.newcomer")
    assert "kv_heads" in said
    assert str(checkout / PLUGIN / "newcomers_query.py") in said


def test_it_is_checked(checkout: Path) -> None:
    overrides = ["attention=newcomer", "attention.kv_heads=2"]
    found = json.loads(paribus(checkout, "check", "gpt-tiny", *overrides, "--json"))
    assert found["spec"]["attention"]["name"] == "newcomer"


def test_it_is_tested(checkout: Path) -> None:
    tests = ["tests/core/paribus/testing/test_conform.py", "-q", "-p", "no:cacheprovider", "-k", "attention.newcomer"]
    assert "1 passed" in run(checkout, "pytest", *tests)


def test_it_is_benchmarked(checkout: Path) -> None:
    collect = ["benchmarks/bench_attention.py", "-o", "python_files=bench_*.py", "--collect-only", "-q"]
    found = run(checkout, "pytest", *collect, "-p", "no:cacheprovider", "-k", "newcomer")
    assert "test_time_of_each[newcomer]" in found


def test_it_is_in_the_table_of_components(checkout: Path) -> None:
    subprocess.run(
        [sys.executable, "docs/components.py"],
        cwd=checkout,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(str(checkout / root) for root in ("core", "plugins"))},
        check=True,
    )
    assert "| `newcomer` |" in (checkout / "docs" / "components.md").read_text()


def test_it_is_ablated(checkout: Path, tmp_path: Path) -> None:
    (tmp_path / "study.yaml").write_text(STUDY)
    words = ["run", str(tmp_path / "study.yaml"), "--store", str(tmp_path / "runs"), "--jobs", "2", "--json"]
    (row,) = [row for row in json.loads(paribus(checkout, *words))["rows"] if "newcomer" in row["variant"]]
    assert row["n"] == 2
    assert row["verdict"]
