"""The process of a job on another machine, here."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

import pytest

from paribus.runner.processes import JobEnvironment, JobProcess
from paribus.slots.launcher import Job, JobEnded


def begun(monkeypatch: pytest.MonkeyPatch, folder: Path, script: str, home: JobEnvironment | None = None) -> JobProcess:
    """A job's process that runs a script, which may read its order."""
    monkeypatch.setattr(Job, "command", property(lambda self: [sys.executable, "-c", script]))
    return JobProcess(Job("a", '{"an": "order"}', str(folder / "log.txt")), home or JobEnvironment({}, str(folder)))


def end(process: JobProcess) -> JobEnded:
    ended = process.wait(60)
    assert ended is not None
    assert process.wait(0) == ended
    return ended


def test_a_job_gets_its_request_and_folder_and_its_output_is_logged(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    script = "import os, sys; print(os.getcwd(), os.environ['NAME']); print(sys.stdin.read()); sys.exit(7)"
    process = begun(monkeypatch, tmp_path, script, JobEnvironment({"NAME": "value"}, str(tmp_path)))
    assert process.location == f"process {process._process.pid} on {os.uname().nodename}"
    assert end(process) == JobEnded("a", 7, None, '{"an": "order"}')
    assert (tmp_path / "log.txt").read_text() == f'{tmp_path} value\n{{"an": "order"}}\n'


def test_a_job_in_the_other_environment_has_no_variables_of_the_user(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("OF_THE_USER", "x")
    script = (
        "import os; print(os.environ['PYTHONHASHSEED'], os.environ['PARIBUS_CACHE_DIR'], 'OF_THE_USER' in os.environ)"
    )
    monkeypatch.setattr(Job, "command", property(lambda self: [sys.executable, "-c", script]))
    home = JobEnvironment({"PYTHONHASHSEED": "0", "PARIBUS_CACHE_DIR": "c"}, str(tmp_path))
    job = Job("a", "", str(tmp_path / "log.txt"), other_environment=True)
    assert end(JobProcess(job, home)).last_line == "1 c False"


def test_a_missing_folder_is_ignored(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert end(begun(monkeypatch, tmp_path, "", JobEnvironment({}, str(tmp_path / "none")))).code == 0


def test_a_signal_reaches_the_job_and_sigkill_its_subprocesses(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    process = begun(monkeypatch, tmp_path, "import os, time; os.write(1, b'on\\n'); time.sleep(60)")
    while not (tmp_path / "log.txt").exists() or not (tmp_path / "log.txt").read_text():
        assert process.wait(0.05) is None
    process.send(signal.SIGTERM)
    assert end(process) == JobEnded("a", None, signal.SIGTERM, "on")
    process.send(signal.SIGTERM)  # what has ended does not mind
    script = "import os, time; os.write(1, b'%d\\n' % os.fork()); time.sleep(60)"
    process = begun(monkeypatch, tmp_path, script)
    while len(words := (tmp_path / "log.txt").read_text().split()) < 3:
        assert process.wait(0.05) is None
    process.send(signal.SIGKILL)
    assert end(process).signal == signal.SIGKILL
    child = next(int(word) for word in words[1:] if word != "0")
    until = time.monotonic() + 20
    while Path(f"/proc/{child}").exists() and Path(f"/proc/{child}/stat").read_text().split()[2] != "Z":
        assert time.monotonic() < until
        time.sleep(0.01)


def test_a_job_that_closes_its_output_is_waited_for(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    process = begun(monkeypatch, tmp_path, "import os, time; os.close(1); os.close(2); time.sleep(0.3); os._exit(3)")
    assert end(process).code == 3


def test_the_environment_has_this_code_and_the_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PARIBUS_CACHE_DIR", "cache")
    home = JobEnvironment.current()
    assert home.folder == str(tmp_path)
    assert home.environment["PARIBUS_CACHE_DIR"] == str(tmp_path / "cache")
    assert home.environment["OMP_NUM_THREADS"] == "1"
    assert str(Path(__file__).parents[4] / "core") in home.environment["PYTHONPATH"].split(os.pathsep)
    assert "HOME" not in home.environment
