"""`paribus status --watch`: states, losses while trials run, the time left, and the end."""

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

import paribus
from paribus.cli._watch import BINS, LossHistory, StudyWatch, sparkline, summary
from paribus.cli.status import trial_states
from paribus.runner.progress import ProgressReader

Cli = Callable[..., Any]
WriteStudy = Callable[..., Path]


def write_steps(path: Path, *steps: int) -> None:
    with path.open("a") as file:
        file.writelines(json.dumps({"step": step, "loss": 10.0 / step}) + "\n" for step in steps)


def test_a_history_has_the_losses_of_the_last_attempt(tmp_path: Path) -> None:
    path = tmp_path / "progress.jsonl"
    history = LossHistory(ProgressReader(path, from_start=True))
    history.update()  # nothing is there yet
    write_steps(path, 1, 2, 3, 4)
    history.update()
    assert history.step == 4
    write_steps(path, 3, 5)  # interrupted, and resumed after step 2
    history.update()
    assert history.step == 5
    assert [loss for _, loss in history.binned(steps=5)] == [10.0 / step for step in (1, 2, 3, 5)]


def test_a_long_history_is_thinned_out(tmp_path: Path) -> None:
    path = tmp_path / "progress.jsonl"
    write_steps(path, *range(1, 5000))
    history = LossHistory(ProgressReader(path, from_start=True))
    history.update()
    points = list(history.binned(steps=5000))
    assert len(points) <= 512
    assert {index for index, _ in points} == set(range(BINS))


def test_bars_are_on_one_range_and_unknown_values_are_blank() -> None:
    known = [1.0, *[2.0] * 8, 3.0, 3.0, 50.0]  # the first loss is far above the others
    assert sparkline([50.0, 3.0, 2.0, None, 1.0], known) == "██▅ ▁"
    assert sparkline([2.0, 2.0], [2.0, 2.0]) == "▁▁"
    assert sparkline([None, float("nan")], []) == "  "


@pytest.mark.thorough
@pytest.mark.usefixtures("trials_in_this_process")
def test_watching_ends_with_the_study_and_prints_its_states(cli: Cli, write_study: WriteStudy) -> None:
    path = str(write_study())
    assert cli("run", path, "--jobs", "2").code == 0
    result = cli("status", path, "--watch")
    assert result.code == 0
    assert "4 done" in result.err
    assert "4 of 4 trials have a record" in result.out


@pytest.mark.thorough
@pytest.mark.usefixtures("trials_in_this_process")
def test_the_time_left_follows_from_finished_trials(cli: Cli, write_study: WriteStudy) -> None:
    path = write_study()
    cli("run", str(path), "--jobs", "2")
    study = StudyWatch(paribus.study(path), trial_states)
    study.look()
    assert study.has_ended
    assert summary(study) == "4 done"
    first, *others = study.planned.plan.trials
    folder = study.planned.store.folder
    for trial in study.planned.plan.trials:
        os.utime(folder(trial.identity) / "lock", (1000, 1000))
        os.utime(folder(trial.identity) / "record.json", (1020, 1020))
    study.states = {
        first.identity: "running",
        others[0].identity: "pending",
        **{t.identity: "done" for t in others[1:]},
    }
    finished = study.share(first)  # it has written its last step
    assert finished == 1.0
    assert study.seconds_left() == pytest.approx(20.0)  # one more trial, one at a time


def test_before_a_trial_has_finished_the_time_left_follows_from_its_steps(cli: Cli, write_study: WriteStudy) -> None:
    study = StudyWatch(paribus.study(write_study()), trial_states)
    first, *others = study.planned.plan.trials
    folder = study.planned.store.create_folder(first)
    steps = first.spec["trainer"]["max_steps"]
    (folder / "lock").touch()
    os.utime(folder / "lock", (time.time() - 30,) * 2)
    study.look()
    study.states = {first.identity: "running", **{trial.identity: "pending" for trial in others}}
    assert study.seconds_left() is None
    study = StudyWatch(study.planned, lambda _: {first.identity: "running", **{t.identity: "pending" for t in others}})
    write_steps(folder / "progress.jsonl", steps // 2)
    study.look()
    half = 30.0 * steps / (steps // 2)
    assert study.seconds_left() == pytest.approx(half * (len(others) + 1) - 30.0, rel=0.1)


def test_ctrl_c_leaves_a_running_study_alone(cli: Cli, write_study: WriteStudy) -> None:
    path = str(write_study())
    assert cli("status", path).code == 0
    program = Path(sys.executable).with_name("paribus")
    with subprocess.Popen([program, "status", path, "--watch"], stdout=-1, stderr=-1, text=True) as process:
        assert process.stderr is not None
        assert "4 pending; no trial is running" in process.stderr.readline()
        time.sleep(0.2)
        process.send_signal(signal.SIGINT)
        output, errors = process.communicate(timeout=30)
    assert process.returncode == 0
    assert "0 of 4 trials have a record" in output
    assert "Traceback" not in errors
