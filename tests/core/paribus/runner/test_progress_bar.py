"""Bar of a study in a notebook, and who sees it; bars in a terminal are tested in cli/test_run.py."""

import sys
from types import ModuleType
from typing import Any

import pytest
from tests.fixtures.problems import raises_problem

import paribus
from paribus.errors import SpecError
from paribus.runner.progress import Event
from paribus.runner.progress_bar import NotebookBar, StudyProgress, can_show_live

STUDY: dict[str, Any] = {
    "base": {"preset": "encoder-tiny"},
    "vary": {"attention": ["mqa"]},
    "seeds": [0, 1],
    "budget": {"steps": 2},
    "metric": "val/mlm/loss",
}


class Display:
    """Stand-in for `IPython.display`, which needs a running notebook: it keeps what a cell shows."""

    def __init__(self) -> None:
        self.shown: list[str] = []

    def display(self, html: str, *, display_id: bool) -> "Display":
        assert display_id
        self.shown.append(html)
        return self

    def update(self, html: str) -> None:
        self.shown[-1] = html


@pytest.fixture(name="cell")
def _cell(monkeypatch: pytest.MonkeyPatch) -> Display:
    cell, module = Display(), ModuleType("IPython.display")
    vars(module).update(HTML=str, display=cell.display)
    monkeypatch.setitem(sys.modules, "IPython", ModuleType("IPython"))
    monkeypatch.setitem(sys.modules, "IPython.display", module)
    return cell


def test_a_notebook_shows_one_bar_and_escapes_names(cell: Display) -> None:
    bar = NotebookBar()
    bar.show(0.25, "1/4 trials")
    bar.show(0.5, "<b>2/4</b>")
    assert cell.shown == ['<progress value="0.5000" max="1"></progress> <code>&lt;b&gt;2/4&lt;/b&gt;</code>']


def test_a_notebook_ends_with_the_number_of_trials(
    cell: Display, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Any
) -> None:
    monkeypatch.setattr("rich.console._is_jupyter", lambda: True)
    planned = paribus.study(STUDY, store=tmp_path)
    with StudyProgress(planned, planned.plan.trials, 1) as progress:
        for trial in planned.plan.trials:
            progress.on_event(Event(kind="progress", trial=trial, step=1, steps=2, loss=3.0))
            progress.on_event(Event(kind="ended", trial=trial, state="done"))
    assert "4/4 trials in" in cell.shown[0]
    assert capsys.readouterr().err.count("\n") == 1  # the number of trials to run, and no line for each


def test_output_to_a_file_is_no_place_for_a_bar() -> None:
    assert not can_show_live()


def test_ipython_shows_the_message_of_an_error_without_frames() -> None:
    with raises_problem(SpecError, "unknown-study", "nosuch") as error:
        paribus.run("nosuch")
    (line,) = error.value._render_traceback_()
    assert line.startswith('SpecError: error[unknown-study]: unknown study "nosuch"; valid: ')
