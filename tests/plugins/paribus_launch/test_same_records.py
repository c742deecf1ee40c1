"""The same study on every launcher: the same records."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest
from tests.plugins.paribus_launch.conftest import check_program_study, fingerprint, write_study

import paribus

LOCAL = {"name": "local"}
SLURM = {"name": "slurm", "executor": "local"}
RAY = {"name": "ray", "cpus": 0.5}


def run(folder: Path, launcher: dict[str, Any], jobs: int, *, at: Path) -> str:
    planned = paribus.study(write_study(folder, launcher, to=at), store=at / "runs")
    paribus.run(planned, jobs=jobs)
    return fingerprint(planned.store)


@pytest.fixture(scope="module")
def expected(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> str:
    return run(folder, LOCAL, 1, at=tmp_path_factory.mktemp("local"))


@pytest.mark.slow
@pytest.mark.timeout(900)  # each trial imports torch, up to a minute on a busy machine
@pytest.mark.filterwarnings("default")  # Ray's own warnings
@pytest.mark.parametrize(
    ("launcher", "library", "jobs"),
    [(LOCAL, "", 3), (SLURM, "submitit", 1), (SLURM, "submitit", 4), (RAY, "ray", 1), (RAY, "ray", 4)],
    ids=["local-3", "slurm-1", "slurm-4", "ray-1", "ray-4"],
)
def test_all_launchers_leave_the_same_records(
    folder: Path, expected: str, launcher: dict[str, Any], library: str, jobs: int, tmp_path: Path
) -> None:
    if library and importlib.util.find_spec(library) is None:
        pytest.skip(f"{library} is not installed: pip install 'paribus[{launcher['name']}]'")
    assert run(folder, launcher, jobs, at=tmp_path) == expected


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize(("launcher", "library"), [(SLURM, "submitit"), (RAY, "ray")], ids=["slurm", "ray"])
def test_a_killed_study_of_a_program_resumes_on_every_launcher(
    launcher: dict[str, Any], library: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if importlib.util.find_spec(library) is None:
        pytest.skip(f"{library} is not installed: pip install 'paribus[{launcher['name']}]'")
    check_program_study(launcher, tmp_path, monkeypatch)
