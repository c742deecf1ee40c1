"""`paribus run`, `status` and `compare` of one study: output, exit codes and suggested commands."""

from __future__ import annotations

import json
import os
import re
import shlex
import sys
import termios
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any, final

import pytest

import paribus
from paribus.cli.console import Session
from paribus.cli.main import main
from paribus.cli.run import _fresh_seeds
from paribus.errors import EXIT_NOT_COMPARABLE, EXIT_STORE
from paribus.planning import estimate as plan_estimate
from paribus.planning.api import PlannedStudy
from paribus.runner.progress import Event
from paribus.runner.progress_bar import StudyProgress
from paribus.train import step_memory

Cli = Callable[..., Any]
Patch = pytest.MonkeyPatch
WriteStudy = Callable[..., Path]

PLUGIN = """
from paribus import Norm, hookimpl


class Broken(Norm):
    \"\"\"Fails in its first step.\"\"\"

    def __init__(self, width: int) -> None:
        super().__init__()

    def forward(self, x):
        raise RuntimeError("oops")

    def cost(self, load):
        from paribus import Cost

        return Cost()


@hookimpl
def norm():
    return {"broken": Broken}
"""


@pytest.mark.parametrize("session", [Session(), Session((Path("./a b.py"), Path("c.py"))), Session(no_plugins=True)])
@pytest.mark.parametrize("store", [Path("runs"), Path("else where")])
def test_the_next_command_has_the_options_of_the_session(
    session: Session, store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from paribus.cli import run

    calls: list[Any] = []
    monkeypatch.setattr(run.verb, "callback", lambda **options: calls.append(options))
    words = shlex.split(session.command("run", "my study.yaml", store=store))
    assert main(words[1:]) == 0
    assert (calls[0]["study"], calls[0]["store"]) == ("my study.yaml", store)
    assert [word for word in words if word.endswith(".py")] == [str(path) for path in session.plugins]
    assert ("--no-plugins" in words) == session.no_plugins


@pytest.mark.usefixtures("trials_in_this_process")
def test_run_and_compare_print_the_same_verdict(cli: Cli, write_study: WriteStudy) -> None:
    path = str(write_study())
    empty_status = cli("status", path, "--trials", "--store", "else")
    assert (
        f"0 of 4 trials have a record in {Path('else/mine').resolve()}; next: paribus run {path} --store else"
        in empty_status.out
    )
    run_result = cli("run", path, "--store", "else", "--jobs", "2")
    assert run_result.code == cli("compare", path, "--store", "else").code == 0
    assert f"next: paribus compare {path} --store else · paribus status {path} --store else" in run_result.out
    saved = cli("compare", path, "--store", "else", "--results", "kept")
    assert "written: kept/RESULTS.md, kept/records.jsonl" in saved.err
    assert Path("kept/RESULTS.md").read_text().startswith("# mine\n")
    assert len(Path("kept/records.jsonl").read_text().splitlines()) == 4
    for _ in range(2):  # the second overwrites the page of the first
        assert (page := cli("report", path, "--store", "else", "-o", "page.html")).code == 0
        assert page.out == "written: page.html\n"
    page_text = Path("page.html").read_text()
    assert "<h1>mine: val/mlm/loss, lower is better</h1>" in page_text
    assert "attention=mqa" in page_text
    assert all(f'<figure id="{name}"' in page_text for name in ("curves", "differences", "metric-by-params"))
    result = cli("status", path, "--trials", "--store", "else")
    folders = [Path(folder) for folder in re.findall(r"\S+/[0-9a-f]{24,}", result.out)]
    assert len(folders) == 4
    assert all((folder / "record.json").is_file() for folder in folders)

    (folders[0] / "record.json").write_text("{")
    damaged_run = cli("compare", path, "--store", "else")
    assert damaged_run.code == 1
    assert "Not finished: 1 pending" in damaged_run.out
    assert cli("run", path, "--store", "else").code == 0


@pytest.mark.slow
def test_added_seeds_are_named_in_a_verdict(cli: Cli, write_study: WriteStudy) -> None:
    assert cli("run", str(write_study()), "--store", "else").code == 0
    more_seeds = cli("run", str(write_study(seeds=3)), "--store", "else")
    assert "Seeds were added after a verdict had been shown (2 → 3)" in " ".join(more_seeds.out.split())
    fresh_seeds = cli("run", str(write_study(seeds=[7, 8, 9])), "--store", "else")
    assert "Seeds were added" not in fresh_seeds.out


@pytest.mark.thorough
@pytest.mark.usefixtures("trials_in_this_process")
def test_a_withheld_verdict_shows_no_difference(cli: Cli, write_study: WriteStudy) -> None:
    sure = {
        "name": "val/mlm/loss",
        "margin": 100,
    }  # wide enough for "equivalent", which is withheld: three steps do not beat the unigram baseline
    run_result = cli("run", str(write_study(seeds=3, metric=sure)), "--json")
    (row,) = json.loads(run_result.out)["rows"]
    assert (run_result.code, row["verdict"], row["difference"]) == (1, "withheld (did not learn: no verdict)", None)
    assert "added after a verdict" in cli("compare", str(write_study(seeds=4, metric=sure)), "--json").out
    stated = cli("compare", str(write_study(seeds=3, metric={**sure, "unlearned": True})), "--json")
    (row,) = json.loads(stated.out)["rows"]
    assert (stated.code, row["verdict"]) == (0, "equivalent")


@pytest.mark.parametrize(
    ("needs", "suggestion"),
    [
        ((None, 7, 23), " · for a verdict: a study with ~23 other seeds, `seeds: [5, 6, …]`"),
        ((None,), ""),
        ((), ""),
    ],
)
def test_an_inconclusive_verdict_suggests_fresh_seeds(needs: tuple[int | None, ...], suggestion: str) -> None:
    rows = [SimpleNamespace(needs=need) for need in needs]
    table: Any = SimpleNamespace(seeds=(0, 1, 4), rows=rows, open_ended=False)
    table.settings = [table]
    assert _fresh_seeds(table) == suggestion
    table.open_ended = True
    assert ("`seeds: 23`" in _fresh_seeds(table)) == bool(suggestion)


@pytest.mark.thorough
def test_a_failed_trial_is_reported_with_its_log(cli: Cli, write_study: WriteStudy) -> None:
    Path("mine.py").write_text(PLUGIN)
    path = str(write_study(vary={"norm": ["broken"]}))
    result = cli("run", path, "--plugin", "mine.py", "--jobs", "1")
    assert result.code == 1
    assert re.search(r"RuntimeError: oops \(\S*mine.py:\d+, in forward\); its log: \S+log.txt", result.err), result.err
    assert "paribus --plugin mine.py status" in result.out
    log = re.findall(r"its log: (\S+)", cli("status", path, "--plugin", "mine.py").err)[0]
    assert "oops" in Path(log).read_text()


@pytest.mark.parametrize("verb", [["run"], ["run", "--plan"], ["compare"], ["status"]])
@pytest.mark.parametrize("store", ["afile", "afile/below"])
def test_a_store_that_is_a_file_is_refused_at_once(
    cli: Cli, verb: list[str], store: str, write_study: WriteStudy
) -> None:
    Path("afile").write_text("")
    result = cli(verb[0], str(write_study()), *verb[1:], "--store", store)
    assert result.code == EXIT_STORE
    assert "error[not-a-folder] (afile): " in result.err


def test_the_error_without_records_names_the_store(cli: Cli, write_study: WriteStudy) -> None:
    result = cli("compare", str(write_study()), "--store", "empty")
    assert result.code == EXIT_NOT_COMPARABLE
    assert "error[no-records]: " in result.err
    assert str(Path("empty/mine").resolve()) in result.err


@pytest.mark.thorough
def test_the_plan_prints_the_name_and_store_of_the_study(cli: Cli, write_study: WriteStudy) -> None:
    result = cli("run", str(write_study()), "--plan", "--store", "else")
    assert "study mine; records in else/mine" in result.out


@pytest.mark.thorough
def test_the_plan_of_a_step_that_does_not_fit_says_so_and_times_nothing(
    cli: Cli, write_study: WriteStudy, monkeypatch: Patch
) -> None:
    monkeypatch.setattr(step_memory, "free_memory", lambda device: 512)
    path = str(write_study())
    result = cli("run", path, "--plan")
    assert result.code == 0
    assert "a step needs about" in result.out
    assert "of memory, and 512B are free" in result.out
    assert "the time is not known" in result.out
    document = json.loads(cli("run", path, "--plan", "--json").out)
    assert document["variants"][0]["seconds_per_trial"] is None
    assert document["seconds"] is None
    assert len(document["not_known"]) == len(document["variants"])


@pytest.mark.thorough
def test_a_plan_without_timing_takes_no_step(cli: Cli, write_study: WriteStudy, monkeypatch: Patch) -> None:
    path = str(write_study())
    timed = json.loads(cli("run", path, "--plan", "--json").out)
    assert timed["seconds"] > 0
    monkeypatch.setattr(plan_estimate, "TimedSteps", None)
    result = cli("run", path, "--plan", "--no-timing")
    assert result.code == 0
    assert "the time is not known" in result.out
    assert "No steps were timed. Memory is predicted" in result.out
    assert "timing five steps" not in result.err
    untimed = json.loads(cli("run", path, "--plan", "--no-timing", "--json").out)
    assert untimed["seconds"] is None
    for row, timed_row in zip(untimed["variants"], timed["variants"], strict=True):
        assert row["training_flops"] == timed_row["training_flops"]
        assert 0 < row["peak_bytes"] < timed_row["peak_bytes"]  # of one step, not of the process
        assert row["seconds_per_trial"] is None


@final
class Terminal:
    """Pseudo-terminal as stderr."""

    def __init__(self, monkeypatch: Patch, kind: str) -> None:
        self._patch = monkeypatch
        self._kind = kind

    def __enter__(self) -> Terminal:
        self._main, self._side = os.openpty()
        termios.tcsetwinsize(self._side, (24, 120))
        self._stream = os.fdopen(self._side, "w")
        self._patch.setenv("TERM", self._kind)
        self._patch.setattr(sys, "stderr", self._stream)
        return self

    def __exit__(self, *exception: object) -> None:
        self._stream.close()

    def text(self) -> str:
        data = b""
        with suppress(OSError):  # Linux reports the closed side as an error
            while block := os.read(self._main, 1 << 16):
                data += block
        os.close(self._main)
        return data.decode()


def test_interrupted_trials_do_not_count_as_done(capsys: pytest.CaptureFixture[str], swap: Mapping[str, Any]) -> None:
    planned: PlannedStudy = paribus.study(swap)
    done_trial, interrupted_trial, *_ = planned.plan.trials
    with StudyProgress(planned, planned.plan.trials[:4], 1) as progress:
        progress.on_event(Event(kind="ended", trial=done_trial, state="done"))
        progress.on_event(Event(kind="ended", trial=interrupted_trial, state="interrupted"))
        assert progress.done == 1


def show_study(planned: PlannedStudy) -> StudyProgress:
    trial_a, trial_b, *removed = planned.plan.trials
    with StudyProgress(planned, planned.plan.trials, 1) as progress:
        threads = [thread.name for thread in threading.enumerate()]
        for trial in (trial_a, trial_b):
            progress.on_event(Event(kind="started", trial=trial))
            progress.on_event(Event(kind="progress", trial=trial, step=1, steps=2, loss=1.5))
            progress.on_event(Event(kind="ended", trial=trial, state="done"))
        progress.on_event(Event(kind="planned", removed=tuple(removed), text="not needed"))
    assert progress.done == progress.total == 2
    assert threads == ["MainThread"]
    return progress


def test_a_terminal_shows_one_live_bar_and_starts_no_thread(swap: Mapping[str, Any], monkeypatch: Patch) -> None:
    planned = paribus.study(swap)
    with Terminal(monkeypatch, "xterm-256color") as terminal:
        show_study(planned)
    text = terminal.text()
    assert "2/4 trials" in text
    assert "\x1b[2K" in text  # lines are drawn over
    assert ": done" not in text


@pytest.mark.parametrize("kind", ["dumb terminal", "log"])
def test_a_log_and_a_dumb_terminal_show_a_line_per_trial(
    swap: Mapping[str, Any], monkeypatch: Patch, capsys: pytest.CaptureFixture[str], kind: str
) -> None:
    planned = paribus.study(swap)
    if kind == "log":
        show_study(planned)
        text = capsys.readouterr().err
    else:
        with Terminal(monkeypatch, "dumb") as terminal:
            show_study(planned)
        text = terminal.text()
    assert [line.split(" trials: ")[0] for line in text.splitlines() if ": done" in line] == ["1/4", "2/4"]
    assert "\x1b" not in text


def test_records_are_read_by_study_name_or_path(cli: Cli, write_study: WriteStudy) -> None:
    assert paribus.records("quickstart") == paribus.records(write_study()) == []


def test_the_repr_of_a_study_is_one_line(swap: Mapping[str, Any]) -> None:
    assert repr(paribus.study({**swap, "name": "swap"})) == "<study swap: 2 variants, 4 trials, in runs/swap>"
