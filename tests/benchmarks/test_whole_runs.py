"""Whole training runs beside other libraries do the same work."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from benchmarks.whole_run_peers import FAMILIES, Examples, Setting, factor, hand_written, label_count
from benchmarks.whole_runs import (
    RUNNERS,
    SETTINGS,
    main,
    measured_process,
    rehearsal,
    words,
    write_examples,
)

from paribus.assembly.cost import count_parameters
from paribus.models.assemble import build_data, load_corpus, meta_model
from paribus.registry import Registry
from paribus.specs import resolved


@pytest.fixture(scope="module", params=SETTINGS)
def written(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Setting]:
    folder = tmp_path_factory.mktemp("examples")
    return folder, write_examples(folder, rehearsal(SETTINGS[request.param]))


@pytest.mark.parametrize("name", SETTINGS)
def test_the_models_have_about_the_same_parameters(name: str, registry: Registry) -> None:
    pytest.importorskip("transformers")
    setting = SETTINGS[name]
    setting = setting._replace(vocabulary=setting.vocabulary or 294)
    spec = resolved(*words(setting), f"dims.vocabulary={setting.vocabulary}", registry=registry)
    parameters = count_parameters(meta_model(spec, registry).children())
    with torch.device("meta"):
        models = (hand_written(setting), FAMILIES[setting.family].hugging_face(setting.size()))
    for model in models:
        assert sum(parameter.numel() for parameter in model.parameters()) == pytest.approx(parameters, rel=0.05)


@pytest.mark.thorough
def test_the_runs_have_the_examples_of_paribus(written: tuple[Path, Setting], registry: Registry) -> None:
    folder, setting = written
    spec = resolved(*words(setting), registry=registry)
    data = build_data(spec, registry, load_corpus(spec, registry))
    objective = FAMILIES[setting.family].objective
    splits = {split: list(Examples(folder, split, objective).batches(setting.batch)) for split in ("train", "val")}
    assert len(splits["train"]) == setting.steps
    assert sum(len(batch.index) for batch in splits["val"]) == data.val_count
    for ours, theirs in ((data.step(1), splits["train"][1]), (data.validation_batch(1), splits["val"][1])):
        torch.testing.assert_close(theirs.streams["body"].tokens, ours.streams["body"].tokens)
        torch.testing.assert_close(dict(theirs.targets[objective]), dict(ours.targets[objective]))


@pytest.mark.few(1)
def test_hugging_face_gets_as_many_labels(written: tuple[Path, Setting]) -> None:
    folder, setting = written
    examples = Examples(folder, "train", FAMILIES[setting.family].objective)
    rows = [examples[index] for index in range(setting.batch)]
    labels = examples.collate_for_transformers(rows)["labels"]
    assert int((labels >= 0).sum()) == label_count(examples.collate(rows)) > 0


def test_the_learning_rates_are_those_of_the_schedule(registry: Registry) -> None:
    from paribus.assembly.components import make
    from paribus.slots.schedule import Schedule

    spec = resolved(*words(SETTINGS["decoder"]), registry=registry)
    schedule = make(registry, "schedule", spec["schedule"], kind=Schedule)
    ours = [schedule.factor(step, 400) for step in range(400)]
    np.testing.assert_allclose([factor(step, 400) for step in range(400)], ours, atol=0.01)


def test_the_peak_memory_of_a_process_excludes_that_of_this_one(tmp_path: Path) -> None:
    status, wall, cpu, peak = measured_process([sys.executable, "-S", "-c", "pass"], tmp_path / "output")
    assert (status, wall > 0, cpu > 0) == (0, True, True)
    assert peak < 1 << 26


@pytest.mark.slow
@pytest.mark.parametrize("name", SETTINGS)
def test_every_runner_trains(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("accelerate")
    output = tmp_path / "results.json"
    main(["--rehearse", "--model", name, "--output", str(output)])
    lines = capsys.readouterr().out.splitlines()
    assert sum(line.startswith("| ") for line in lines) == 2 + len(RUNNERS)
    result = json.loads(output.read_text(encoding="utf-8"))["models"][name]
    runs = [runs["whole"][0] for runs in result["runs"].values()]
    losses = [run["loss"] for run in runs]
    assert max(losses) - min(losses) < 0.5
    assert max(losses) < np.log(result["setting"]["vocabulary"]) + 0.3
    assert all(run["cpu"] > 1 and run["peak_bytes"] > 1 << 27 for run in runs)
