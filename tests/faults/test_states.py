"""States of trials as users see them: every state, every signal, and unwritable outputs."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.core.paribus.runner.test_kills import alive, family

from paribus.errors import EXIT_FAILED, EXIT_INTERRUPTED, EXIT_OK, EXIT_STORE, EXIT_TERMINATED
from paribus.runner.processes import process_environment

SABOTEUR = Path(__file__).parents[1] / "core/paribus/runner/saboteur.py"
FAILURES = {"1": "raise", "2": "memory", "3": "hang"}
SMALL = {"dims.width": 8, "dims.layers": 1, "dims.heads": 2, "dims.length": 16, "data.batch": 4, "data.validation": 8}
STUDY: dict[str, Any] = {
    "base": {"preset": "encoder-tiny", **SMALL, "schedule": {"name": "constant", "warmup": 0.0}},
    "vary": {"optimizer.lr": [1e12]},
    "budget": {"steps": 12},
    "metric": "val/mlm/loss",
}

Start = Callable[..., "subprocess.Popen[str]"]

pytestmark = pytest.mark.faults


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Start `paribus` in a separate process, with a plugin that fails as planned for each seed."""
    processes: list[subprocess.Popen[str]] = []
    (tmp_path / "plan.json").write_text("{}")

    def run(*words: str, plan: dict[str, Any] | None = None, **variables: Any) -> subprocess.Popen[str]:
        if plan is not None:
            (tmp_path / "plan.json").write_text(json.dumps(plan))
        process = subprocess.Popen(
            [sys.executable, "-m", "paribus", "--plugin", str(SABOTEUR), *words],
            stdout=variables.pop("stdout", subprocess.PIPE),
            stderr=subprocess.PIPE,
            text=True,
            cwd=tmp_path,
            env={
                **process_environment(),
                "PARIBUS_SABOTAGE": str(tmp_path / "plan.json"),
                "COLUMNS": "40",
                **variables,
            },
            start_new_session=True,
        )
        processes.append(process)
        return process

    yield run
    for process in processes:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


def write_study(folder: Path, **changes: Any) -> str:
    (folder / "mine").mkdir(exist_ok=True)
    (folder / "mine/study.yaml").write_text(json.dumps({**STUDY, **changes}))
    return "mine/study.yaml"


def states(start: Start, path: str) -> dict[str, str]:
    """Return the state of each variant and seed, as `paribus status` prints it."""
    output, _ = start("status", path, "--json").communicate(timeout=900)
    return {f"{row['variant']} {row['seed']}": row["state"] for row in json.loads(output)["trials"]}


def wait_until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 900
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)


@pytest.mark.held("D1", "D3", "D5", "D7")
def test_every_trial_state_occurs_and_is_reported(start: Start, tmp_path: Path) -> None:
    path = write_study(tmp_path, seeds=4, timeout=20)
    pending = {
        f"{variant} {seed}": "pending" for variant in ("baseline", "optimizer.lr=1000000000000.0") for seed in range(4)
    }
    assert states(start, path) == pending
    plan = {seed: {"do": failure, "step": 2} for seed, failure in FAILURES.items()}
    run = start("run", path, "--jobs", "8", plan=plan)
    wait_until(lambda: len(list(tmp_path.glob("runs/mine/*/progress.jsonl"))) == 8)
    assert "running" in states(start, path).values()
    out, err = run.communicate(timeout=900)
    assert run.returncode == EXIT_FAILED
    assert "Traceback" not in out + err
    final_states = states(start, path)
    assert [final_states[f"baseline {seed}"] for seed in range(4)] == ["done", "failed", "out-of-memory", "timeout"]
    assert final_states["optimizer.lr=1000000000000.0 0"] == "diverged"
    assert "ValueError: this is what a plugin's mistake looks like" in err
    assert "out of memory when 1152921504606846976 bytes more were requested" in err
    assert "it was stopped after 20 s" in err
    assert all(len(line) <= 40 for line in out.splitlines() if "/" not in line and "paribus" not in line)
    assert start("run", path, plan={}).wait(900) == EXIT_FAILED  # diverged trials are not repeated
    assert set(states(start, path).values()) == {"done", "diverged"}


@pytest.mark.held("D9")
@pytest.mark.parametrize(
    ("number", "code", "name"),
    [
        (signal.SIGINT, EXIT_INTERRUPTED, "Ctrl-C"),
        (signal.SIGTERM, EXIT_TERMINATED, "SIGTERM"),
        (signal.SIGHUP, EXIT_TERMINATED, "SIGHUP"),
        (signal.SIGUSR1, EXIT_TERMINATED, "SIGUSR1"),
    ],
)
def test_a_signal_leaves_checkpoints_and_prints_the_resume_command(
    start: Start, tmp_path: Path, number: signal.Signals, code: int, name: str
) -> None:
    path = write_study(tmp_path, seeds=2, vary={"attention": ["mqa"]}, budget={"steps": 400})
    run = start("run", path, "--jobs", "2")
    wait_until(lambda: any(file.read_text().count("step") > 1 for file in tmp_path.glob("runs/mine/*/progress.jsonl")))
    everybody = family(run.pid)
    os.kill(run.pid, number)
    _, err = run.communicate(timeout=900)
    assert run.returncode == code
    line = next(line for line in err.splitlines() if "to go on:" in line)
    assert f"stopped by {name}; nothing is lost; to go on: paribus --plugin {SABOTEUR} run {path} --jobs 2" in line
    assert alive(everybody) == []
    assert "interrupted" in states(start, path).values()
    assert list(tmp_path.glob("runs/mine/*/checkpoints/step-*"))


@pytest.mark.held("D19")
def test_an_unwritable_output_loses_no_record(start: Start, tmp_path: Path) -> None:
    path = write_study(tmp_path, seeds=2, vary={"attention": ["mqa"]}, budget={"steps": 2})
    with Path("/dev/full").open("w") as full:
        run = start("run", path, stdout=full)
        _, err = run.communicate(timeout=900)
    assert run.returncode == EXIT_STORE
    assert "cannot write to stdout: No space left on device" in err
    assert "Traceback" not in err
    assert set(states(start, path).values()) == {"done"}
    closed = start("run", path, stdout=subprocess.PIPE)
    assert closed.stdout is not None
    closed.stdout.close()
    closed.stdout = None
    assert closed.wait(900) in (EXIT_OK, EXIT_FAILED)
