"""The folder for a GPU machine without a network."""

from __future__ import annotations

import ast
import importlib.metadata
import os
import shutil
import subprocess
import sys
import tomllib
import venv
from collections.abc import Iterator
from pathlib import Path

import pytest
from benchmarks.gpu_bundle import BROUGHT, carried, closure, commit, copy_files
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]
PYTHON = f"{sys.version_info.major}.{sys.version_info.minor}"


def names(lines: list[str]) -> set[str]:
    return {line.partition("==")[0] for line in lines}


@pytest.mark.thorough
def test_every_dependency_is_carried_or_comes_with_torch() -> None:
    lines = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    needed = {canonicalize_name(Requirement(line).name) for line in lines}
    assert needed - names(carried("3.12")) - closure(BROUGHT, "3.12") == set()
    assert "torch" not in names(carried("3.12"))


def test_what_is_required_by_a_dependency_is_carried_too() -> None:
    assert {"jsonschema", "referencing", "rpds-py", "pytorch-lightning", "aiohttp"} <= names(carried("3.12"))


@pytest.mark.thorough
def test_what_the_machine_has_is_left_out_with_its_requirements() -> None:
    left_out = names(carried("3.12")) - names(carried("3.12", present=["altair"]))
    assert {"altair", "jsonschema", "narwhals"} <= left_out
    assert "omegaconf" not in left_out


@pytest.mark.thorough
def test_every_module_that_the_package_and_the_tests_import_is_carried(tmp_path: Path) -> None:
    copy_files(tmp_path)
    providers = importlib.metadata.packages_distributions()
    available = names(carried(PYTHON)) | closure(BROUGHT, PYTHON) | {"paribus"}
    ours = {"benchmarks", "tests", *sys.stdlib_module_names}
    sources = [*(ROOT / "core").rglob("*.py"), *(ROOT / "plugins").rglob("*.py"), *tmp_path.rglob("tests/**/*.py")]
    missing = {
        f"{path.name}: {module}"
        for path in sources
        for module in top_level_imports(path)
        if module not in ours
        and not module.startswith("paribus")
        and not {canonicalize_name(name) for name in providers.get(module, [])} & available
    }
    assert missing == set()


def top_level_imports(path: Path) -> Iterator[str]:
    """Yield modules that a file imports when it is imported itself; optional ones are imported in functions."""
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and not node.level:
            yield (node.module or "").partition(".")[0]


def test_the_commit_and_the_script_are_in_the_folder(tmp_path: Path) -> None:
    copy_files(tmp_path)
    assert (tmp_path / "COMMIT").read_text().strip() == commit()
    assert os.access(tmp_path / "run.sh", os.X_OK)
    assert (tmp_path / "tests" / "gpu" / "test_parts.py").is_file()
    ended = subprocess.run([tmp_path / "run.sh"], env=offline(tmp_path), capture_output=True, text=True, check=True)
    assert "./run.sh PART" in ended.stdout


def offline(home: Path) -> dict[str, str]:
    return {"PATH": os.defpath, "HOME": str(home), "PYTHON": sys.executable, "OMP_NUM_THREADS": "1"}


@pytest.mark.slow
def test_the_folder_runs_where_only_torch_is_installed(tmp_path: Path) -> None:
    folder = tmp_path / "gpu"
    command = [sys.executable, str(ROOT / "benchmarks" / "gpu_bundle.py"), "--python", PYTHON, "--output", str(folder)]
    subprocess.run(command, check=True, cwd=tmp_path)
    assert sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()) < 48 * 2**20
    environment = {**offline(tmp_path), "PYTHON": str(only_torch(tmp_path / "venv"))}
    run = [*(("unshare", "-n") if can_unshare() else ()), str(folder / "run.sh")]

    def output(*arguments: str) -> str:
        ended = subprocess.run(
            [*run, *arguments], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
        )
        assert ended.returncode == 0, ended.stdout + ended.stderr
        return ended.stdout

    assert "8 skipped" in output("tests")
    assert "checks held" in output("device", "--rehearse")
    assert "checks held" in output("fused", "--rehearse")
    assert {file.name for file in (folder / "results").iterdir()} >= {"device.json", "fused.json"}


def only_torch(folder: Path) -> Path:
    """Make a virtual environment in which torch and its dependencies, those of this one, can be imported."""
    venv.create(folder, with_pip=True)
    (site,) = folder.glob("lib/python*/site-packages")
    for name in closure(BROUGHT, PYTHON):
        for file in importlib.metadata.files(name) or ():
            top = Path(str(file)).parts[0]
            source, target = Path(str(importlib.metadata.distribution(name).locate_file(top))), site / top
            if top not in {"..", "__pycache__"} and not target.exists():
                target.symlink_to(source)
    return folder / "bin" / "python"


def can_unshare() -> bool:
    return shutil.which("unshare") is not None and not subprocess.run(["unshare", "-n", "true"], check=False).returncode
