"""A study on an existing Ray cluster: the same records, and the cluster keeps running."""

from __future__ import annotations

import os
import secrets
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from tests.plugins.paribus_launch.conftest import fingerprint, write_study

import paribus
from paribus.storage.store import Store

CLUSTER = """
import sys, ray
print(ray.init(address="local", include_dashboard=False, num_cpus=2, log_to_driver=False).address_info["gcs_address"])
sys.stdout.flush()
sys.stdin.read()
"""


@pytest.fixture
def environment() -> Mapping[str, str]:
    """Return an environment with this cluster's token; Ray reads it once a process."""
    return {**os.environ, "RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}


@pytest.fixture
def cluster(environment: Mapping[str, str]) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    pytest.importorskip("ray", reason="ray is not installed: pip install 'paribus[ray]'")
    command, pipe = [sys.executable, "-c", CLUSTER], subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, env=environment) as process:
        assert process.stdout is not None
        yield process.stdout.readline().strip(), process
        process.communicate("")


@pytest.mark.slow
@pytest.mark.timeout(900)  # each trial imports torch
def test_an_existing_cluster_is_joined(
    cluster: tuple[str, subprocess.Popen[str]], environment: Mapping[str, str], folder: Path, tmp_path: Path
) -> None:
    address, owner = cluster
    (tmp_path / "local").mkdir()
    planned = paribus.study(write_study(folder, {"name": "local"}, to=tmp_path / "local"), store=tmp_path / "runs")
    paribus.run(planned)
    (tmp_path / "joined").mkdir()
    path = write_study(folder, {"name": "ray", "address": address, "cpus": 0.5}, to=tmp_path / "joined")
    command = ["paribus", "run", str(path), "--store", str(tmp_path / "runs"), "--jobs", "4", "--no-timing"]
    done = subprocess.run(
        [sys.executable, "-m", *command], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert fingerprint(Store(tmp_path / "runs", "joined")) == fingerprint(planned.store)
    assert owner.poll() is None
