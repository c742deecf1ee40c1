"""Runs of programs in this process: records, environment, failures, a stop, and the memory of a GPU."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from paribus.program.run_program import (
    USER_ENVIRONMENT,
    ProgramContext,
    ProgramFailedError,
    ProgramStoppedError,
    gpu_bytes,
    run_program,
)
from paribus.storage.record_shape import shape_faults

WRITE = "import json, sys; open('m.jsonl', 'w').write(json.dumps({'step': 4, 'loss': float(sys.argv[1]), 'x': 1}))"
Run = Callable[..., dict[str, Any]]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Run Python code as a program, with changes of its spec and context."""
    home = tmp_path / "home"
    home.mkdir()
    monkeypatch.chdir(home)

    def run_code(code: str, loss: float = 2.5, source: str = "m.jsonl", pattern: str = "", **fields: Any) -> Any:
        (home / "train.py").write_text(code)
        program = {
            "command": f"{sys.executable} train.py {{loss}} {{seed}}",
            "options": "{key}={value}",
            "seed_option": "seed",
            "inputs": [],
            "metric": {"name": "loss", "from": source, "pattern": pattern},
        }
        context = ProgramContext(identity="a", folder=tmp_path / "trial", components={"input.train.py": "x"}, **fields)
        return run_program({"loss": loss, "program": program, "seed": 1}, context)

    return run_code


def test_the_record_has_the_values_and_what_they_cost(run: Run, tmp_path: Path) -> None:
    record = run(WRITE)
    assert list(shape_faults(json.loads(json.dumps(record)))) == []
    result, provenance = record["result"], record["provenance"]
    assert result["state"] == "done"
    assert (result["steps"], result["metrics"]) == (4, {"loss": 2.5, "x": 1.0})
    assert result["certificate"]["inputs"] == {"input.train.py": "x"}
    assert provenance["training_seconds"] > 0
    assert 1 << 20 < provenance["peak_bytes"] < 1 << 30
    assert provenance["command"].endswith("train.py 2.5 1")
    assert sorted(path.name for path in (tmp_path / "trial" / "work").iterdir()) == ["m.jsonl", "train.py"]


def test_a_value_that_is_not_finite_is_a_diverged_trial(run: Run) -> None:
    code = "print('loss 3.5'); print('loss nan')"
    result = run(code, source="stdout", pattern=r"loss (\S+)")["result"]
    assert (result["state"], result["metrics"]) == ("diverged", {})
    assert result["diverged"] == {"step": 2, "last_loss": 3.5}
    assert "NaN" not in json.dumps(result)


@pytest.mark.parametrize(
    ("code", "message", "is_memory"),
    [
        ("raise SystemExit(3)", "ended with exit code 3; it printed nothing", False),
        ("import sys; sys.exit('wrong data')", "exit code 1; its last line was: wrong data", False),
        ("import os; os.kill(os.getpid(), 9)", "SIGKILL), likely because the machine was out of memory", True),
        ("raise RuntimeError('CUDA out of memory')", "CUDA out of memory", True),
        ("print('error: unrecognized arguments: --seed=1'); exit(2)", "unrecognized arguments: --seed=1", False),
        ("pass", "wrote no `m.jsonl`", False),
    ],
)
def test_a_failure_says_how_the_program_ended(run: Run, code: str, message: str, is_memory: bool) -> None:
    with pytest.raises(ProgramFailedError, match=r"program-failed|no-metric") as error:
        run(code)
    problem = error.value.problems[0]
    assert message in problem.message
    assert error.value.out_of_memory is is_memory
    assert ("seed_option" in problem.hint) == ("unrecognized" in code)


def test_the_program_has_the_environment_of_the_user(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", "/of/the/worker")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv(USER_ENVIRONMENT, json.dumps({"PYTHONPATH": "/of/the/user", "OMP_NUM_THREADS": "7"}))
    code = f"import json, os; json.dump(dict(os.environ), open('env.json', 'w'))\n{WRITE}"
    record = run(code, devices=["5"])
    environment = json.loads((Path.cwd().parent / "trial" / "work" / "env.json").read_text())
    assert environment["PYTHONPATH"] == "/of/the/user"
    assert environment["OMP_NUM_THREADS"] == record["provenance"]["machine"]["threads"] == "7"
    assert environment["CUDA_VISIBLE_DEVICES"] == "5"
    assert USER_ENVIRONMENT not in environment


def test_an_earlier_attempt_leaves_no_values(run: Run) -> None:
    run(WRITE)
    with pytest.raises(ProgramFailedError, match="wrote no"):
        run("pass")


@pytest.mark.thorough
def test_a_program_that_ends_in_order_when_it_is_stopped_has_no_record(run: Run) -> None:
    handled = (
        f"import signal, time\ndef stop(*a):\n {WRITE}; raise SystemExit(0)\nsignal.signal(signal.SIGTERM, stop)\n"
    )
    start = time.monotonic()
    with pytest.raises(ProgramStoppedError, match="exit code 0"):
        run(f"{handled}time.sleep(60)", should_stop=lambda: time.monotonic() > start + 1)


@pytest.mark.thorough
def test_a_program_may_close_its_output_and_print_much(run: Run) -> None:
    code = f"import os, sys, time\nfor i in range(20000): print('x' * 100)\nsys.stdout.flush(); {WRITE}"
    start = time.monotonic()
    assert run(f"{code}; os.close(1); os.close(2); time.sleep(1)")["result"]["state"] == "done"
    assert time.monotonic() - start < 20


def test_a_program_that_is_asked_to_stop_gets_sigterm(run: Run) -> None:
    start = time.monotonic()
    with pytest.raises(ProgramStoppedError, match="stopped with exit code -15"):
        run("import time; time.sleep(60)", should_stop=lambda: time.monotonic() > start + 0.5)
    assert time.monotonic() - start < 20


def test_the_subprocesses_of_a_program_are_stopped_with_it(run: Run) -> None:
    start = time.monotonic()
    code = "import subprocess, os; child = subprocess.Popen(['sleep', '60']); open('child', 'w').write(str(child.pid))"
    with pytest.raises(ProgramStoppedError, match="stopped"):
        run(f"{code}; child.wait(); raise SystemExit(4)", should_stop=lambda: time.monotonic() > start + 1)
    assert not is_running(int((Path.cwd().parent / "trial" / "work" / "child").read_text()))


def is_running(process: int) -> bool:
    status = Path(f"/proc/{process}/stat")
    return status.exists() and ") Z " not in status.read_text()


KILLED = """
import os, sys, signal
from pathlib import Path
from paribus.program.run_program import ProgramContext, run_program
metric = {"name": "loss", "from": "m.jsonl", "pattern": ""}
program = {"command": "sh -c {code}", "options": "{key}={value}", "seed_option": "seed", "inputs": [], "metric": metric}
context = ProgramContext(identity="a", folder=Path("trial"), components={}, should_stop=lambda: child() and kill())
child = Path("trial/work/child").exists
kill = lambda: os.kill(os.getpid(), signal.SIGKILL)
run_program({"code": sys.argv[1], "program": program, "seed": 1}, context)
"""


def test_a_killed_trial_leaves_no_process_of_its_program(tmp_path: Path) -> None:
    """Such as the ranks of `torchrun`, each of which is in a session of its own."""
    code = "setsid sleep 60 & echo $! > new; mv new child; wait"
    trial = subprocess.run([sys.executable, "-c", KILLED, code], cwd=tmp_path, check=False)
    assert trial.returncode == -signal.SIGKILL
    child, end = int((tmp_path / "trial/work/child").read_text()), time.monotonic() + 20
    while is_running(child):
        assert time.monotonic() < end
        time.sleep(0.05)


@pytest.mark.thorough
def test_progress_is_reported_while_the_program_prints(run: Run) -> None:
    steps: list[tuple[int, float]] = []
    line = "print(f'step {i}: loss {i / 2}', end='\\r', flush=True); time.sleep(0.3)"
    code = f"import time\nfor i in range(3):\n {line}"
    run(
        code,
        source="stdout",
        pattern=r"step (?P<step>\d+): loss (?P<value>\S+)",
        on_step=lambda step, value: steps.append((step, value)),
    )
    assert steps == [(0, 0.0), (1, 0.5), (2, 1.0)]


def test_the_memory_of_a_gpu_is_that_of_the_processes_of_the_trial(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tool = tmp_path / "nvidia-smi"
    tool.write_text("#!/bin/sh\necho '10, 100'\necho '11, 50'\necho '12, [N/A]'\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    assert gpu_bytes({10, 12}) == 100 * 2**20
