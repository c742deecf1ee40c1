"""A study on a Ray cluster of two nodes (`ray start` twice): the records of local trials."""

from __future__ import annotations

import json
import os
import secrets
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from tests.plugins.paribus_launch.conftest import fingerprint, write_study

import paribus
from paribus.storage.store import Store

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

COUNT_NODES = "import ray; ray.init(log_to_driver=False); print(sum(node['Alive'] for node in ray.nodes()))"


@pytest.fixture
def environment(tmp_path: Path) -> Mapping[str, str]:
    """Return an environment with the address and the token of a cluster of this test's own."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    token = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
    return {**os.environ, **token, "RAY_ADDRESS": f"127.0.0.1:{port}", "RAY_USAGE_STATS_ENABLED": "0"}


@pytest.fixture
def two_nodes(environment: Mapping[str, str], tmp_path: Path) -> Iterator[None]:
    """Start a head node and a second node, each with one core."""
    pytest.importorskip("ray", reason="ray is not installed: pip install 'paribus[ray]'")
    ray = str(Path(sys.executable).with_name("ray"))
    folder = Path("/tmp") / f"ray-{secrets.token_hex(4)}"  # a short path: Ray's sockets allow 107 characters
    port = environment["RAY_ADDRESS"].rpartition(":")[2]
    clean = {key: value for key, value in environment.items() if key != "RAY_ADDRESS"}
    head = ["--head", f"--port={port}", "--node-ip-address=127.0.0.1", f"--temp-dir={folder}"]
    second = [f"--address={environment['RAY_ADDRESS']}", "--node-ip-address=127.0.0.1"]
    common = ["--num-cpus=1", "--num-gpus=0", "--object-store-memory=100000000", "--disable-usage-stats"]
    started: list[subprocess.Popen[bytes]] = []
    try:
        for options in ([*head, "--include-dashboard=false"], second):
            command = [ray, "start", *options, *common, "--block"]
            with (tmp_path / f"node-{len(started)}.log").open("wb") as log:
                started.append(subprocess.Popen(command, env=clean, stdout=log, stderr=log))
            wait_for_nodes(len(started), environment)
        yield
    finally:
        for process in reversed(started):
            process.terminate()
            process.wait(timeout=60)
        shutil.rmtree(folder, ignore_errors=True)


def wait_for_nodes(expected: int, environment: Mapping[str, str]) -> None:
    output = ""
    for _ in range(20):
        command = [sys.executable, "-c", COUNT_NODES]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=120)
        output = done.stdout.strip() or done.stderr[-2000:]
        if output == str(expected):
            return
    raise AssertionError(f"expected {expected} live nodes, got {output}")


def test_two_nodes_leave_the_records_of_local_trials(
    two_nodes: None, environment: Mapping[str, str], folder: Path, tmp_path: Path
) -> None:
    (tmp_path / "local").mkdir()
    planned = paribus.study(write_study(folder, {"name": "local"}, to=tmp_path / "local"), store=tmp_path / "runs")
    paribus.run(planned)
    (tmp_path / "nodes").mkdir()
    launcher = {"name": "ray", "cpus": 1}  # so that two trials at once need both nodes
    path = write_study(folder, launcher, to=tmp_path / "nodes")
    command = ["run", str(path), "--store", str(tmp_path / "runs"), "--jobs", "2", "--no-timing", "--json"]
    done = subprocess.run(
        [sys.executable, "-m", "paribus", *command],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)
    assert fingerprint(Store(tmp_path / "runs", "nodes")) == fingerprint(planned.store)
