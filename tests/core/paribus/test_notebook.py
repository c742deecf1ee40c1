"""A study in a notebook: a real kernel runs the cells, and its outputs are what a user sees."""

from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.extras

STUDY = """
import paribus
study = paribus.study({
    "base": {"preset": "gpt-tiny", "dims.layers": 1, "dims.width": 32, "dims.heads": 2, "dims.length": 32},
    "vary": {"position": ["rope"]}, "seeds": 2, "budget": {"steps": 4}, "metric": "val/clm/loss",
})
study = paribus.run(study)
"""


@pytest.mark.filterwarnings("ignore")  # of the kernel's libraries
def test_a_study_in_a_notebook(tmp_path: Path) -> None:
    nbformat, nbclient = pytest.importorskip("nbformat"), pytest.importorskip("nbclient")
    cells = [nbformat.v4.new_code_cell(source) for source in (STUDY, "paribus.compare(study)", "paribus.run('nosuch')")]
    notebook = nbformat.v4.new_notebook(cells=cells)
    client = nbclient.NotebookClient(
        notebook, timeout=300, allow_errors=True, resources={"metadata": {"path": str(tmp_path)}}
    )
    client.execute()
    ran, compared, failed = (cell.outputs for cell in notebook.cells)
    (bar,) = (output["data"]["text/html"] for output in ran if output.output_type == "display_data")
    assert bar.startswith('<progress value="1.0000" max="1">')
    assert "4/4 trials" in bar
    assert ".." not in "".join(text_of(output) for output in ran)  # no line for each step or trial
    (table,) = compared
    assert "position=rope" in str(table["data"])
    assert set(table["data"]) > {"text/plain"}
    (error,) = failed
    assert error["evalue"].startswith('error[unknown-study]: unknown study "nosuch"')


def text_of(output: Any) -> str:
    return str(output.get("text", ""))
