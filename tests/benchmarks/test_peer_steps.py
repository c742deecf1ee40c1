"""Models of other libraries do the same work as ours, and a library that is not installed costs one line."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from benchmarks.hugging_face import Size
from benchmarks.peer_models import FAMILIES, Contestant, built, checked
from benchmarks.peer_windows import SIZES, contestants, ours
from torch import nn

ROOT = Path(__file__).parents[2]
SMALL = Size(width=32, layers=2, heads=2, length=16, batch=2, vocabulary=128)
TABLES = {"steps": 3, "windows": 2, "decoding": 1, "memory": 2}
BY_HAND = ("by hand", "paribus")


@pytest.mark.slow
@pytest.mark.parametrize("part", TABLES)
def test_every_part_runs(part: str, tmp_path: Path) -> None:
    output = tmp_path / "results.json"
    command = [sys.executable, str(ROOT / "benchmarks" / "peer_steps.py"), "--rehearse", "--part", part]
    ended = subprocess.run(
        [*command, "--output", str(output)], capture_output=True, text=True, check=False, timeout=900
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "REHEARSAL" in ended.stdout
    document = json.loads(output.read_text())
    assert document["commit"]
    assert document["machine"]["versions"]["torch"]
    sections = document["parts"][part]
    assert len(sections) == TABLES[part]
    for section in sections:
        assert f"### {section['title']}" in ended.stdout
        assert any("paribus" in row[0] for row in section["rows"])
        assert any("Hugging Face" in row[0] for row in section["rows"])


@pytest.mark.parametrize("name", FAMILIES)
def test_a_hand_written_model_and_ours_have_the_same_loss(name: str) -> None:
    family = FAMILIES[name]
    models, missing = built({label: family.models[label] for label in BY_HAND}, SMALL)
    figures = checked(models, family.batch(SMALL), SMALL)
    assert not missing
    assert figures["paribus"] == pytest.approx(figures["by hand"])


def test_a_library_that_is_not_installed_costs_a_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "x_transformers", None)
    labels = ("by hand", "x-transformers")
    models, missing = built({label: FAMILIES["decoder"].models[label] for label in labels}, SMALL)
    assert list(models) == ["by hand"]
    assert len(missing) == 1
    assert "x_transformers" in missing[0]


def test_models_of_other_sizes_and_losses_are_refused() -> None:
    family = FAMILIES["decoder"]
    reference, batch = family.models["by hand"](SMALL), family.batch(SMALL)
    wider = family.models["by hand"](SMALL._replace(width=64))
    with pytest.raises(SystemExit, match="parameters"):
        checked({"reference": reference, "wider": wider}, batch, SMALL)
    doubled = Contestant(reference.module, lambda batch: 2 * reference.loss(batch))
    with pytest.raises(SystemExit, match="ln V"):
        checked({"reference": reference, "doubled": doubled}, batch, SMALL)
    shifted = Contestant(reference.module, lambda batch: reference.loss(batch) + 0.01, twin="reference")
    with pytest.raises(SystemExit, match="reference with"):
        checked({"reference": reference, "shifted": shifted}, batch, SMALL)


def test_windows_of_other_outputs_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    peers = {"a wider window": lambda rows, window: ours(rows, window + 1)}
    monkeypatch.setattr("benchmarks.peer_windows.PEERS", peers)
    with pytest.raises(SystemExit, match="a wider window differs"):
        contestants(64, 8, backward=False)
    assert all(rows % (2 * window) == 0 for rows, window in SIZES)  # Longformer's chunks have two windows


def test_all_matrices_have_the_same_deviation() -> None:
    module = FAMILIES["decoder"].models["paribus"](Size()).module
    tables = [child.weight for child in module.modules() if isinstance(child, nn.Linear | nn.Embedding)]
    assert len(tables) > 10
    assert all(abs(float(weight.detach().std()) - 0.02) < 0.001 for weight in tables)
