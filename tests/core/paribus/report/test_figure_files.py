"""Figures as files: sizes, colours, captions, and folders that are not overwritten."""

import json
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from tests.fixtures.problems import raises_problem

from paribus.analysis.compare import compare
from paribus.analysis.trials import ComparisonSpec, TrialEntry
from paribus.errors import SpecError, StoreError
from paribus.report.charts import Figure, forest_figure
from paribus.report.figure_files import FORMATS, write_figures

Study = Callable[..., list[TrialEntry]]
Ask = Callable[..., ComparisonSpec]


@pytest.fixture(name="figure", scope="module")
def _figure(study: Study, ask: Ask) -> Figure:
    entries = study(baseline=[2.0, 2.1, 1.9], mqa=[2.5, 2.61, 2.42], gqa=[2.0, 2.11, 1.92])
    return forest_figure(compare(entries, ask(entries, margin=0.1)))


@pytest.mark.thorough
def test_a_figure_is_written_in_every_format_with_its_caption(figure: Figure, tmp_path: Path) -> None:
    paths = write_figures([("", figure), ("42 M/params", figure)], tmp_path / "figures")
    assert [path.name for path in paths] == [
        f"{name}.{kind}" for name in ("differences", "42-m-params-differences") for kind in FORMATS
    ]
    svg = paths[0].read_text()
    assert 'width="240"' in svg.partition(">")[0]
    assert "currentColor" not in svg
    assert "attention=mqa" in svg or "mqa" in svg
    captions = json.loads((tmp_path / "figures" / "captions.json").read_text())
    assert captions["differences"]["caption"] == figure.note
    write_figures([("", figure)], tmp_path / "figures")  # later figures replace earlier ones


@pytest.mark.thorough
def test_the_caption_of_a_file_names_no_control_of_a_page(figure: Figure, tmp_path: Path) -> None:
    interactive = replace(figure, page_note="Drag to move.", print_note="Layer 1.")
    write_figures([("", interactive)], tmp_path / "figures")
    captions = json.loads((tmp_path / "figures" / "captions.json").read_text())
    assert captions["differences"]["caption"] == f"{figure.note} Layer 1."


def test_other_files_are_not_overwritten(figure: Figure, tmp_path: Path) -> None:
    (tmp_path / "differences.svg").write_text("mine")
    with raises_problem(StoreError, "not-empty"):
        write_figures([("", figure)], tmp_path)
    assert (tmp_path / "differences.svg").read_text() == "mine"


def test_a_missing_converter_names_its_extra(figure: Figure, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "vl_convert", None)
    with raises_problem(SpecError, "not-installed", "paribus[figures]"):
        write_figures([("", figure)], tmp_path / "figures")
    assert not (tmp_path / "figures").exists()
