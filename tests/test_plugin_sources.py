"""Plugin sources: an installed distribution, a file on the command line, and a class in Python.

An attention from each source is list_row, checked and check_study in a study.
"""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any, final

import pytest
from torch import Tensor

import paribus
from paribus import (
    SOFTMAX_TRAITS,
    Attend,
    Attention,
    Context,
    Cost,
    Heads,
    Load,
    ScoreOptions,
    Shape,
    State,
    empty_cache,
    softmax_cost,
    visibility_of,
)

SAMPLE = Path(__file__).parents[1] / "docs" / "examples" / "paribus-sample"
HOOK = """

from paribus import hookimpl


@hookimpl
def attention() -> Mapping[str, type[Attention]]:
    return {"mine": QueryKeyNorm}
"""


def study(attention: str) -> dict[str, Any]:
    """Return a study of one variant that takes seconds."""
    small = {"dims.width": 8, "dims.layers": 1, "dims.heads": 2, "dims.length": 16, "data.batch": 4}
    return {
        "base": {"preset": "encoder-tiny", **small, "data.validation": 8},
        "vary": {"attention": [attention]},
        "seeds": 2,
        "budget": {"steps": 3},
        "metric": "val/mlm/loss",
    }


def run_json(folder: Path, *words: str, path: Path | None = None) -> Any:
    """Run a command in a separate process, and return its JSON output."""
    environment = {**os.environ, **({"PYTHONPATH": str(path)} if path else {})}
    command = [sys.executable, "-m", "paribus", *words, "--json"]
    process = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert process.returncode == 0, process.stderr
    return json.loads(process.stdout)


def list_row(folder: Path, name: str, *source_options: str, path: Path | None = None) -> dict[str, Any]:
    rows = run_json(folder, "list", "attention", *source_options, path=path)
    (row,) = [row for row in rows if row["name"] == name]
    return dict(row)


def check_study(folder: Path, name: str, *source_options: str, path: Path | None = None) -> None:
    """Run a study of a component, and assert that it has a verdict."""
    (folder / "study.yaml").write_text(json.dumps(study(name)))  # JSON is YAML
    table = run_json(folder, "run", "study.yaml", "--jobs", "2", *source_options, path=path)
    (row,) = [row for row in table["rows"] if row["variant"] == f"attention={name}"]
    assert row["n"] == 2
    assert row["verdict"]
    assert run_json(folder, "compare", "study.yaml", *source_options, path=path) == table


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder into which pip installed the sample distribution."""
    folder = tmp_path_factory.mktemp("site")
    source = tmp_path_factory.mktemp("source") / "sample"
    shutil.copytree(SAMPLE, source)
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "install", "--quiet"]
    offline = ["--no-index", "--no-deps", "--no-build-isolation", "--target", str(folder)]
    subprocess.run(
        [*pip, *offline, str(source)], check=True, capture_output=True, env={**os.environ, "PIP_NO_INPUT": "1"}
    )
    return folder


@pytest.mark.slow
def test_an_installed_distribution_is_listed_checked_and_ablated(site: Path, tmp_path: Path) -> None:
    row = list_row(tmp_path, "qk-norm", path=site)
    assert row["distribution"] == "paribus-sample 0.1.0"
    assert [option["name"] for option in row["options"]] == ["scale", "bias"]
    checked = run_json(tmp_path, "check", "gpt-tiny", "attention=qk-norm", "attention.scale=4", path=site)
    assert checked["spec"]["attention"] == {"name": "qk-norm", "scale": 4.0, "bias": True}
    check_study(tmp_path, "qk-norm", path=site)


@pytest.mark.slow
def test_the_test_of_the_sample_passes_when_installed(site: Path) -> None:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-c", os.devnull, "--rootdir", str(site)]
    done = subprocess.run(
        [*command, str(SAMPLE / "tests")],
        cwd=site,
        env={**os.environ, "PYTHONPATH": str(site)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout


@pytest.mark.slow
def test_a_plugin_file_is_listed_checked_and_ablated(tmp_path: Path) -> None:
    source = (SAMPLE / "paribus_sample" / "query_key_norm.py").read_text()
    (tmp_path / "mine.py").write_text(source + HOOK)
    source_options = ("--plugin", "./mine.py")
    assert list_row(tmp_path, "mine", *source_options)["distribution"] == "mine.py"
    assert run_json(tmp_path, "check", "gpt-tiny", "attention=mine", *source_options)["ok"]
    check_study(tmp_path, "mine", *source_options)


@final
class Capped(Attention):
    """Attention with scores capped at ±1, defined in a notebook."""

    traits = SOFTMAX_TRAITS

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        self.heads = Heads(shape, kv_heads=1, bias=False)
        self.attend = Attend(shape, visibility_of(shape), ScoreOptions(soft_cap=1.0))

    def forward(self, x: Tensor, ctx: Context) -> Tensor:
        return self.heads.merge(self.attend(self.heads, x, ctx))

    def start(self, batch: int, length: int, like: Tensor) -> State:
        return empty_cache(self.shape, 1, batch, length, like)

    def cost(self, load: Load) -> Cost:
        return softmax_cost(self.shape, 1, self.attend.visibility, load)


def test_a_python_class_is_listed_checked_and_ablated(tmp_path: Path) -> None:
    registry = paribus.installed().with_components(attention={"capped": Capped})
    assert registry.index.find("attention", "capped").summary == (Capped.__doc__ or "")
    assert paribus.spec("gpt-tiny", "attention=capped", registry=registry).attention.name == "capped"
    planned = paribus.study(study("capped"), registry=registry, store=tmp_path)
    messages: list[str] = []
    table = paribus.compare(paribus.run(planned, registry=registry, on_event=lambda event: messages.append(event.text)))
    (row,) = [row for row in table.to_json()["rows"] if row["variant"] == "attention=capped"]
    assert row["n"] == 2
    assert "attention.capped exist in this process only" in messages[0]
